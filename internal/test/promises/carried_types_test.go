package promises

import (
	"context"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/msgpack"
)

type carriedAddress struct {
	Street string
	zip    string
}

type carriedUser struct {
	Name    string
	Address *carriedAddress
}

// carriedLoaders returns the errors of NewLoader and NewBatchLoader for values of one type.
func carriedLoaders[V any](c *cacheaside.Cache, o *cacheaside.LoaderOptions) [2]error {
	var v V
	_, err := cacheaside.NewLoader(c, "one", func(context.Context, int) (V, error) { return v, nil }, o)
	_, err2 := cacheaside.NewBatchLoader(c, "many",
		func(context.Context, []int) (map[int]V, error) { return nil, nil }, o)
	return [2]error{err, err2}
}

// A loader is refused if Redis would not return its values unchanged. The error names the field and
// the remedy.
func TestTypesThatRedisWouldChangeAreRefused(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &patient)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const zip = " does not carry carriedUser.Address.zip: it is not exported; export it, give its struct "
	for _, x := range []struct {
		errs [2]error
		want string
	}{
		{carriedLoaders[carriedUser](c, nil), "JSON" + zip + "MarshalJSON and UnmarshalJSON, or accept the loss with LoaderOptions.AllowLoss"},
		{carriedLoaders[carriedUser](c, &cacheaside.LoaderOptions{Codec: cacheaside.JSON}), "JSON" + zip},
		{carriedLoaders[carriedUser](c, &cacheaside.LoaderOptions{Codec: msgpack.Codec}), "MessagePack" + zip + "MarshalBinary and UnmarshalBinary"},
		{carriedLoaders[struct {
			A int `json:"-"`
		}](c, nil), `JSON does not carry A: its tag is json:"-"; take the tag away`},
		{carriedLoaders[chan int](c, &cacheaside.LoaderOptions{AllowLoss: true}), "JSON does not carry chan int: a chan int has no encoding; use another type, or set another LoaderOptions.Codec"},
	} {
		for i, err := range x.errs {
			if want := []string{`loader "one"`, `loader "many"`}[i] + ": LoaderOptions.Codec: " + x.want; err == nil ||
				!strings.HasPrefix(err.Error(), "cacheaside: "+want) {
				t.Errorf("%v\nwant %s", err, want)
			}
		}
	}
	for _, err := range carriedLoaders[carriedUser](c, &cacheaside.LoaderOptions{Codec: bare{9}}) {
		if err != nil {
			t.Error("a user's codec is not checked:", err)
		}
	}
}

// With AllowLoss, a value is complete where it was loaded, and lacks the field when it comes from
// Redis.
func TestAllowLoss(t *testing.T) {
	_, b := embedded(t)
	for i, want := range []string{"1012", ""} {
		c, err := cacheaside.New(b.client(t), &patient)
		if err != nil {
			t.Fatal(err)
		}
		l, err := cacheaside.NewLoader(c, "user", func(context.Context, int) (carriedUser, error) {
			return carriedUser{"Ada", &carriedAddress{"Keizersgracht", "1012"}}, nil
		}, &cacheaside.LoaderOptions{AllowLoss: true})
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.Get(t.Context(), 1)
		if err != nil || got.Address.Street != "Keizersgracht" || got.Address.zip != want {
			t.Errorf("process %d: %+v, %v", i, got.Address, err)
		}
		c.Close()
	}
}

// A Cache without Redis encodes nothing, and returns loaded values as they are.
func TestLocalAcceptsAnyType(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "greet", func(_ context.Context, name string) (func() string, error) {
		return func() string { return "hello, " + name }, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		greet, err := l.Get(t.Context(), "Ada")
		if err != nil || greet() != "hello, Ada" {
			t.Error(err)
		}
	}
	if s := l.Stats(); s.MemoryHits != 1 || s.Loads != 1 {
		t.Errorf("%+v", s)
	}
}
