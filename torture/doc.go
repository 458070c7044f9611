// Package torture runs several processes on real servers, injects faults of many kinds, and checks
// that the processes saw what cacheaside promises. It only has tests. Its README describes how to
// run them and how to read their tables.
package torture
