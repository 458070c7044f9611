package conn

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestScriptIsKnownByItsHash(t *testing.T) {
	rdb := testenv.SharedRedis(t).Client(t)
	s := NewScript("\n\treturn 'it ran'\n")
	if got := rdb.ScriptLoad(t.Context(), s.Source).Val(); got != s.Hash {
		t.Errorf("Redis calls it %s, we %s", got, s.Hash)
	}
	if got := rdb.Do(t.Context(), "eval", "return redis.sha1hex('abc')", 0).Val(); got != SHA1([]byte("abc")) {
		t.Errorf("sha1hex is %v, SHA1 %s", got, SHA1([]byte("abc")))
	}
	if got, err := rdb.EvalSha(t.Context(), s.Hash, nil).Text(); got != "it ran" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestUnknownScript(t *testing.T) {
	rdb := testenv.SharedRedis(t).Client(t)
	s := NewScript("return 1")
	if cmd := rdb.EvalSha(t.Context(), s.Hash, nil); !Unknown(cmd) {
		t.Errorf("%v", cmd.Err())
	}
	forged := NewScript("return redis.error_reply('NOSCRIPT a script of its own says so')")
	if cmd := rdb.Eval(t.Context(), forged.Source, nil); Unknown(cmd) || cmd.Err() == nil {
		t.Errorf("a script sent in full: %v", cmd.Err())
	}
	cmd := redis.NewCmd(t.Context(), "evalsha", s.Hash, 0)
	for _, err := range []error{nil, errors.New("NOSCRIPT"), redis.Nil} {
		if cmd.SetErr(err); Unknown(cmd) && !IsReply(err) {
			t.Errorf("%v", err)
		}
	}
}
