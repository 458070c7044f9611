package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// redisServer is the Redis of one world, embedded, and each process' way to it.
type redisServer struct {
	mini  *miniredis.Miniredis
	links [processes]*link
	clock sync.WaitGroup
	stop  chan struct{}
}

func newRedisServer() (*redisServer, error) {
	mini, err := miniredis.Run() // on a free port of 127.0.0.1
	if err != nil {
		return nil, fmt.Errorf("the embedded Redis: %w", err)
	}
	s := &redisServer{mini: mini, stop: make(chan struct{})}
	s.clock.Go(s.tick)
	for i := range s.links {
		if s.links[i], err = newLink(mini.Addr()); err != nil {
			s.close()
			return nil, fmt.Errorf("the way to Redis: %w", err)
		}
	}
	return s, nil
}

// tick makes what is stored expire. The server's own ClockTTL(true) would sort all keys at each
// command.
func (s *redisServer) tick() {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case now := <-ticker.C:
			s.mini.FastForward(now.Sub(last))
			last = now
		case <-s.stop:
			return
		}
	}
}

// each does something to all ways to it.
func (s *redisServer) each(do func(*link)) {
	for _, l := range s.links {
		do(l)
	}
}

func (s *redisServer) close() {
	for _, l := range s.links {
		if l != nil {
			l.close()
		}
	}
	close(s.stop)
	s.clock.Wait()
	s.mini.Close()
}
