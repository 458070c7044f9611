package main

import (
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/examples/internal/embedded"
)

// redisServer is the embedded Redis of one system, with the links of its processes.
type redisServer struct {
	mini  *embedded.Redis
	links [processes]*link
}

func newRedisServer() (*redisServer, error) {
	mini, err := embedded.Start()
	if err != nil {
		return nil, err
	}
	mini.StartClock(10 * time.Millisecond)
	s := &redisServer{mini: mini}
	for i := range s.links {
		if s.links[i], err = newLink(mini.Addr()); err != nil {
			s.close()
			return nil, fmt.Errorf("the way to Redis: %w", err)
		}
	}
	return s, nil
}

// each calls f for all links.
func (r *redisServer) each(do func(*link)) {
	for _, l := range r.links {
		do(l)
	}
}

func (r *redisServer) close() {
	for _, l := range r.links {
		if l != nil {
			l.close()
		}
	}
	r.mini.Close()
}
