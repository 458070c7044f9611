// Package docs tests the documentation: that links lead somewhere, that snippets compile and run,
// and that what users begin with has an example.
package docs
