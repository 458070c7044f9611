//go:build !race

package main

const replayed = 20_000
