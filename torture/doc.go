// Package torture runs a fleet of processes on real servers, breaks what can be broken, and checks
// that what the processes saw is what cacheaside promises. It holds nothing but tests; its README
// says how to run them and how to read their tables.
package torture
