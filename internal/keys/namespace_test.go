package keys

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// Both were computed by another implementation, in Python. To change one is to lose what is cached,
// and to let the versions in a fleet miss each other's invalidations.
var golden = []struct {
	text string
	tag  string // of Name
	hash uint64
}{
	{"", "%", 0x36fb32623cbdeb54},
	{"a", "a", 0x34123d0a8c885a0},
	{"42", "42", 0x10c5b941264692e},
	{"-9223372036854775808", "-9223372036854775808", 0x528431b7f3a8af3},
	{"user:42", "user:42", 0xb2d3e9a811b17a82},
	{"%", "%25", 0xc2441e7a1843e273},
	{"}", "%7D", 0xfb9a3252311f6d80},
	{"{", "{", 0x4e668e15dc0be578},
	{"{a}b", "{a%7Db", 0xfa130eaa0ce121e0},
	{"a%7Db", "a%257Db", 0x402808b958e7498d},
	{"%~", "%25~", 0xe5a87ac15e81d55e},
	{"\x00", "\x00", 0x5b0e3de080196ec6},
	{"\xff\xfe", "\xff\xfe", 0x99cb726fdaf06299},
	{"a\nb", "a\nb", 0xb70b60079fcb89ad},
	{"café", "café", 0x3e480bee22e3e425},
	{strings.Repeat("x", 256), strings.Repeat("x", 256), 0x8f514c8eff8a9770},
	{strings.Repeat("%", 256), strings.Repeat("%25", 256), 0xa7f6bd45a38a192e},
	{strings.Repeat("x", 257), "%~257~FeuVpGLuIL2RpBWuLUrtNBKIGG3aorN5CPfVkvDD-F8", 0xe0e5854585f15080},
	{strings.Repeat("}", 257), "%~257~BndlRQAQd1NkE15ZWXGB16JpPb7l765OYghLvRvtGOM", 0x5e903dca6145bc53},
	{strings.Repeat("x", 255) + "é", "%~257~0DvhgWAaR0azge-wZxGC08kPjTVkHytfT5BTt79UtcM", 0xd5237f18e60f2457}, // 256 runes: bytes count
	{strings.Repeat("x", 100_000), "%~100000~1p5omIFXgzJyMFqvIfRTyAA0boo2QNtleOJgIVVC5dQ", 0x7b2aa5fa8ce4b6e4},
}

func TestNamesAndHashesAreStable(t *testing.T) {
	n := NewNamespace("p", "users", "v1.2")
	for _, g := range golden {
		name, long := n.Name(g.text)
		if want := "p:users:v1.2:{" + g.tag + "}"; name != want || long != (len(g.text) > 256) {
			t.Errorf("%.20q is named %q (long: %t), want %q", g.text, name, long, want)
		}
		if got := n.Hash(g.text); got != g.hash || got != xxhash.Sum64String("users\x00"+g.text) {
			t.Errorf("%.20q hashes to %#x, want %#x", g.text, got, g.hash)
		}
	}
}

func TestLongLoaderNamesHash(t *testing.T) {
	for length := range 100 { // past the hash's blocks of 32 bytes
		loader := strings.Repeat("l", length)
		n := NewNamespace("p", loader, "1")
		for _, text := range []string{"", "a", strings.Repeat("a", 31), strings.Repeat("a", 1000)} {
			if n.Hash(text) != xxhash.Sum64String(loader+"\x00"+text) {
				t.Errorf("loader of %d bytes, text of %d", length, len(text))
			}
		}
	}
}

// Namespaces that differ in any part have different names, and different loaders have different
// hashes.
func TestNamespacesDiffer(t *testing.T) {
	seen := make(map[string]string)
	parts := []string{"a", "b", "a.b", "0", "-"}
	for _, prefix := range parts {
		for _, loader := range parts {
			for _, version := range parts {
				for _, text := range []string{"", "a", "a:{a", strings.Repeat("a", 257)} {
					name, _ := NewNamespace(prefix, loader, version).Name(text)
					step := fmt.Sprint(prefix, " ", loader, " ", version, " ", text)
					if other, ok := seen[name]; ok {
						t.Errorf("%q and %q are both named %q", other, step, name)
					}
					seen[name] = step
				}
			}
		}
	}
	if NewNamespace("p", "a", "1").Hash("k") == NewNamespace("p", "b", "1").Hash("k") {
		t.Error("two loaders, one hash")
	}
}

// Processes of all versions compute the hash of a group. It is not that of the key of the same
// text.
func TestGroupHash(t *testing.T) {
	for _, group := range []string{"", "a", "category:books", strings.Repeat("g", 300)} {
		if got := GroupHash("users", group); got != xxhash.Sum64String("users\x00\x00group\x00"+group) ||
			got == NewNamespace("p", "users", "1").Hash(group) {
			t.Errorf("%.20q hashes to %#x", group, got)
		}
	}
}

func TestValidName(t *testing.T) {
	for _, s := range []string{"a", "Z", "0", "user", "v1.2", "A-b_c.9", ".", "-", strings.Repeat("a", 1000)} {
		if !ValidName(s) {
			t.Errorf("%q is not valid", s)
		}
	}
	for _, s := range []string{"", "a b", "a:b", "{", "}", "a\n", "\n", "\x00", "é", "ａ", "\xff", "a/b", "a*", "[", "`",
		"@", "^"} {
		if ValidName(s) {
			t.Errorf("%q is valid", s)
		}
	}
	for c := range 256 {
		want := strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-", rune(c))
		if got := ValidName("x" + string([]byte{byte(c)})); got != (want && c < 128) {
			t.Errorf("byte %#x: %t", c, got)
		}
	}
}
