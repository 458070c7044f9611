package clients_test

import (
	"bufio"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// sharding starts a proxy that spreads keys over servers, and returns its address. What has no key
// goes to the first server.
func sharding(t *testing.T, servers ...*testenv.Redis) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	open := []io.Closer{l}
	t.Cleanup(func() {
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			ends := []net.Conn{client}
			for _, s := range servers {
				if end, err := net.Dial("tcp", s.Addr); err == nil {
					ends = append(ends, end)
				}
			}
			mu.Lock()
			for _, end := range ends {
				open = append(open, end)
			}
			mu.Unlock()
			all.Go(func() { shard(client, ends[1:]) })
		}
	})
	return l.Addr().String()
}

// shard serves a client, one command after the other.
func shard(client net.Conn, servers []net.Conn) {
	defer client.Close()
	in := bufio.NewReader(client)
	replies := make([]*bufio.Reader, len(servers))
	for i, s := range servers {
		defer s.Close()
		replies[i] = bufio.NewReader(s)
	}
	for {
		var raw strings.Builder
		args, err := passOn(&raw, in)
		if err != nil || len(args) == 0 {
			return
		}
		index := 0
		if key := 1 + 2*strings.Count(strings.ToLower(args[0][:min(4, len(args[0]))]), "eval"); key < len(args) &&
			strings.Contains(args[key], "{") {
			h := fnv.New32a()
			h.Write([]byte(args[key][strings.Index(args[key], "{"):]))
			index = int(h.Sum32()) % len(servers)
		}
		if _, err := io.WriteString(servers[index], raw.String()); err != nil {
			return
		}
		if _, err := passOn(client, replies[index]); err != nil {
			return
		}
	}
}

// passOn copies a command or a reply, and returns its texts.
func passOn(to io.Writer, from *bufio.Reader) (texts []string, err error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return nil, err
	}
	fmt.Fprint(to, line)
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch {
	case line[0] == '$' && n >= 0:
		b := make([]byte, n+2)
		if _, err := io.ReadFull(from, b); err != nil {
			return nil, err
		}
		_, err = to.Write(b)
		return []string{string(b[:n])}, err
	case line[0] == '*':
		for range n {
			more, err := passOn(to, from)
			if err != nil {
				return nil, err
			}
			texts = append(texts, more...)
		}
	}
	return texts, nil
}

// A proxy that spreads keys over servers is noticed, for it may execute an announcement before its
// delete.
func TestShardingProxy(t *testing.T) {
	client := func(addr string) *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, ContextTimeoutEnabled: true})
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	one, other := testenv.StartRedis(t), testenv.StartRedis(t)
	const says = "several Redis servers that share the keys"
	p := open(t, client(sharding(t, one, other)), &table{}, patient())
	_, err := p.rows.Get(t.Context(), 1)
	refused(t, "Get", err, says)
	refused(t, "Invalidate", p.rows.Invalidate(t.Context(), 1), says)
	refused(t, "InvalidateAll", p.rows.InvalidateAll(t.Context()), says)

	alone := open(t, client(sharding(t, one)), &table{}, patient())
	if v, err := alone.rows.Get(t.Context(), 1); v != 0 || err != nil {
		t.Error(v, err)
	}
	if err := alone.rows.Invalidate(t.Context(), 1); err != nil {
		t.Errorf("a proxy of one server: %v", err)
	}
}
