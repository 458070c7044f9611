// Package meter measures whether invalidations reach every tier of every process. Its result has
// the form "consistent in five nines within ten seconds", after Meta's Polaris (Cache made
// consistent, 2022).
//
//	m, err := meter.New(cache, nil)  // in each process that writes
//	defer m.Close()
//	…
//	c, _ := m.Consistency(10 * time.Second)
//	// within 10s: 10 of 41210 different, so 0.00024 (0.00012 to 0.00045, 95 %): 3.6 nines,
//	// at least 3.3; 0 undecided
//	fmt.Println(c)
//
// A Meter samples the writes of its process at random. Some time after a sampled write it reads
// the entry in Redis, and asks all subscribed processes for the state of the key in their memory.
// Copies that may be older than the write are compared with the database. So the Meter also finds
// changes that were never announced, or whose announcement was lost, which no process can detect
// on its own.
//
// docs/guides/meter.md explains how to read the result, what it costs and what it cannot detect.
package meter
