// Package docs tests the documentation: links must have a target, snippets must compile and run,
// and the functions that users need first must have an example.
package docs
