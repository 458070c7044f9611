//go:build !race

package main

const race = 0
