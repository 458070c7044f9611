package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Serverless is a cluster of a single Redis server behind a proxy that has the documented rules of
// Amazon ElastiCache Serverless. It refuses
//
//   - a command with more than 3,999 arguments (RedisConfiguration.html),
//   - a script without keys (BestPractices.Clients.Redis.LuaScripts.html),
//   - a command that the service does not support, such as PSUBSCRIBE, CONFIG or MONITOR
//     (SupportedCommands.html).
//
// The pages are in https://docs.aws.amazon.com/AmazonElastiCache/latest/dg.
//
// The server itself refuses commands on several slots, and SELECT. The proxy does not see which
// commands and keys a script uses.
type Serverless struct {
	Addr string // host:port, for clients

	redis    *Redis
	listener net.Listener
	wg       sync.WaitGroup // of all goroutines

	mu      sync.Mutex
	conns   map[net.Conn]bool // nil after the end
	refused []string          // the reasons, without those of commands that drivers try
}

// serverlessArgs is the maximum number of arguments of a command, with its name.
const serverlessArgs = 3999

// serverlessCommands are the commands that the proxy forwards: those on the list of supported
// commands that the library and its tests send.
var serverlessCommands = strings.Fields(`
	auth hello ping echo quit readonly cluster command
	bitcount bitop del eval evalsha exists flushall get getbit getrange
	hdel hget hgetall hincrby hkeys hlen hmget hset incr info llen lpush persist pexpire pttl
	publish rpush sadd scan script set setbit setrange strlen subscribe time ttl type unlink unsubscribe
	zadd zcard zrange zrem zremrangebyscore zscore`)

var sharedServerless shared[Serverless]

// SharedServerless returns a proxy in front of a server that all tests of the process share, empty
// and with its statistics reset. The proxy ends with the test, and fails it if it has refused a
// command.
func SharedServerless(t testing.TB) *Serverless {
	t.Helper()
	s := startServerless(t)
	t.Cleanup(func() {
		for _, reason := range s.reasons() {
			t.Error("ElastiCache Serverless refuses " + reason)
		}
	})
	return s
}

// startServerless is SharedServerless without the failure.
func startServerless(t testing.TB) *Serverless {
	t.Helper()
	common := sharedServerless.get(always, func() *Serverless {
		port := strconv.Itoa(FreePort(t))
		return &Serverless{
			Addr:  net.JoinHostPort("127.0.0.1", port),
			redis: startShard(t, "--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port),
		}
	})
	common.redis.clean(t)
	s := &Serverless{Addr: common.Addr, redis: common.redis, conns: make(map[net.Conn]bool)}
	s.listen(t)
	t.Cleanup(s.end)
	return s
}

// Client returns a client of the proxy that is closed when the test ends.
func (s *Serverless) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	return closed(t, redis.NewClusterClient(s.options(s.Addr)))
}

// AdminClient returns a client of the server itself, without the rules of the proxy. It is closed
// when the test ends.
func (s *Serverless) AdminClient(t testing.TB) *redis.ClusterClient {
	t.Helper()
	o := s.options(s.redis.Addr)
	o.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) { // the server itself would return the proxy
		return []redis.ClusterSlot{{End: clusterSlots - 1, Nodes: []redis.ClusterNode{{Addr: s.redis.Addr}}}}, nil
	}
	return closed(t, redis.NewClusterClient(o))
}

func (s *Serverless) options(addr string) *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs:                    []string{addr},
		PoolSize:                 poolSize,
		ReadTimeout:              Hang,
		WriteTimeout:             Hang,
		PoolTimeout:              Hang,
		MaintNotificationsConfig: noMaintenance(),
	}
}

// reasons returns why commands were refused.
func (s *Serverless) reasons() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused)
}

func (s *Serverless) listen(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s.listener = listener
	s.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(client) })
		}
	})
}

// end closes all connections and waits for all goroutines.
func (s *Serverless) end() {
	s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
}

// keep makes end close c. It returns false if end has been called.
func (s *Serverless) keep(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[c] = true
	return true
}

// drop closes c.
func (s *Serverless) drop(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// serve forwards the commands of a client until one of the two sides disconnects.
func (s *Serverless) serve(client net.Conn) {
	defer s.drop(client)
	if !s.keep(client) {
		return
	}
	server, err := net.DialTimeout("tcp", s.redis.Addr, replyLimit)
	if err != nil {
		return
	}
	defer s.drop(server)
	if !s.keep(server) {
		return
	}
	s.wg.Go(func() {
		defer client.Close()
		_, _ = io.Copy(client, server) // it ends with one of the two connections
	})
	in, out := bufio.NewReaderSize(client, 64<<10), bufio.NewWriterSize(server, 64<<10)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		writeCommand(out, s.checked(args))
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// checked returns a command, or one that the server does not know instead of one that the service
// refuses. So the client receives an error in the place of the reply.
func (s *Serverless) checked(args []string) []string {
	name := strings.ToLower(args[0])
	reason := ""
	switch {
	case len(args) > serverlessArgs:
		reason = fmt.Sprintf("%s with %d arguments", name, len(args))
	case (name == "eval" || name == "evalsha") && len(args) > 2 && args[2] == "0":
		reason = name + " without keys"
	case !slices.Contains(serverlessCommands, name):
		reason = name
	default:
		return args
	}
	// Drivers send CLIENT SETINFO on each connection, and lock.Inspect counts the callers that wait
	// by PUBSUB NUMSUB. Both accept that it fails.
	if name != "client" && name != "pubsub" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refused = append(s.refused, reason)
	}
	return []string{"refused: " + reason}
}

var errProtocol = errors.New("the request is not an array of strings")

// readCommand reads a command: an array of strings. There is no other request among those of
// drivers.
func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readLength(in, '*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := readLength(in, '$')
		if err != nil {
			return nil, err
		}
		arg := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(in, arg); err != nil {
			return nil, err
		}
		args[i] = string(arg[:size])
	}
	return args, nil
}

func readLength(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if err != nil || line[0] != kind || n < 0 || kind == '*' && n == 0 {
		return 0, errProtocol
	}
	return n, nil
}

// writeCommand writes a command. An error is that of the next Flush.
func writeCommand(out *bufio.Writer, args []string) {
	fmt.Fprintf(out, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(out, "$%d\r\n", len(arg))
		out.WriteString(arg)
		out.WriteString("\r\n")
	}
}
