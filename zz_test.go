package cacheaside
import ("github.com/redis/go-redis/v9";"net";"time";"testing";"context";"fmt";"github.com/cacheaside/cacheaside/internal/testenv";"strings")
func BenchmarkZZHalf(b *testing.B){
 r := testenv.SharedRedis(b)
 rdb := redis.NewClient(&redis.Options{Addr: r.Addr, ContextTimeoutEnabled: true}); defer rdb.Close()
 c, err := New(rdb, &noMemory); if err!=nil {b.Fatal(err)}
 defer c.Close()
 l, _ := NewBatchLoader(c, "row", func(_ context.Context, ids []string) (map[string]*benchRow, error) {
		rows := make(map[string]*benchRow)
		for _, id := range ids { v := row(1); rows[id] = &v }
		return rows, nil
 }, nil)
 const n=400
 var batches [][]string
 for i:=range n { var ks, hits []string; for j:=range 100 { k:=fmt.Sprintf("product:%06d:%05d",i,j); ks=append(ks,k); if j%2==0 {hits=append(hits,k)} }; batches=append(batches,ks); l.GetMany(b.Context(),hits) }
 h:=&zzHook{}; rdb.AddHook(h); rdb.ConfigResetStat(b.Context())
 b.ResetTimer()
 for i:=range n { if m,err:=l.GetMany(b.Context(),batches[i]); len(m)!=100||err!=nil {b.Fatal(err)} }
 b.StopTimer()
 b.ReportMetric(float64(b.Elapsed().Microseconds())/n,"us/batch"); b.ReportMetric(float64(h.d.Microseconds())/n,"us-in-client")
 for k,v := range h.by {b.Log(k, v/n)}
 s,_:=rdb.Info(b.Context(),"commandstats").Result()
 for _, line := range strings.Split(s,"\n") { if strings.Contains(line,"evalsha")||strings.Contains(line,"get")||strings.Contains(line,"set") {b.Log(line)} }
}

type zzHook struct{ d time.Duration; by map[string]time.Duration}
func (h *zzHook) DialHook(next redis.DialHook) redis.DialHook { return func(ctx context.Context, a, c string) (net.Conn, error) { return next(ctx,a,c)} }
func (h *zzHook) add(name string, d time.Duration){ if h.by==nil {h.by=map[string]time.Duration{}}; h.d+=d; h.by[name]+=d }
func (h *zzHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return func(ctx context.Context, c redis.Cmder) error { t:=time.Now(); err:=next(ctx,c); h.add(c.Name(),time.Since(t)); return err} }
func (h *zzHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook { return func(ctx context.Context, c []redis.Cmder) error { t:=time.Now(); err:=next(ctx,c); h.add("pipe "+c[0].Name(),time.Since(t)); return err} }
