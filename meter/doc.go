// Package meter measures whether invalidations reach every tier of every process: "consistent in
// five nines within ten seconds", after Meta's Polaris (Cache made consistent, 2022).
//
//	m, err := meter.New(cache, nil)  // in each process that writes
//	defer m.Close()
//	…
//	c, _ := m.Consistency(10 * time.Second)
//	fmt.Println(c) // 10s: 0 of 41,210 different, 4.0 nines at least (95 %)
//
// It takes a share of the writes of this process, at random; some time later it looks at the entry
// in Redis, and asks all processes that listen what their memory has of the key. Values that may be
// from before the write are compared with the database. So it also finds changes that nobody has
// announced, or that were lost on the way, which no process can know by itself.
//
// docs/guides/meter.md tells how to read it, what it costs and what it cannot see.
package meter
