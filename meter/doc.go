// Package meter measures whether invalidations reach every tier of every process: "consistent in
// five nines within ten seconds", after Meta's Polaris (Cache made consistent, 2022).
//
//	m, err := meter.New(cache, nil)  // in each process that writes
//	defer m.Close()
//	…
//	c, _ := m.Consistency(10 * time.Second)
//	// within 10s: 10 of 41210 different, so 0.00024 (0.00012 to 0.00045, 95 %): 3.6 nines,
//	// at least 3.3; 0 undecided
//	fmt.Println(c)
//
// It takes a share of the writes of this process, at random; some time later it looks at the entry
// in Redis, and asks all processes that listen what their memory has of the key. Values that may be
// from before the write are compared with the database. So it also finds changes that nobody has
// announced, or that were lost on the way, which no process can know by itself.
//
// docs/guides/meter.md tells how to read it, what it costs and what it cannot see.
package meter
