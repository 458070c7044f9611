//go:build race

package mysqlbinlog

const raceEnabled = true
