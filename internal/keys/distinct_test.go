package keys

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// slotText is the part of a name that a cluster hashes to its slot, by the words of the Redis
// Cluster specification: what is between the first "{" and the first "}" to its right, if there are
// both and something is between them; else all of the name.
func slotText(name string) string {
	_, behind, open := strings.Cut(name, "{")
	between, _, closed := strings.Cut(behind, "}")
	if !open || !closed || between == "" {
		return name
	}
	return between
}

func TestSlotText(t *testing.T) { // with the specification's examples
	for name, want := range map[string]string{
		"{user1000}.following": "user1000", "{user1000}.followers": "user1000", "foo{}{bar}": "foo{}{bar}", "foo{{bar}}zap": "{bar",
		"foo{bar}{zap}": "bar", "foo": "foo", "foo{bar": "foo{bar", "foo}bar{": "foo}bar{", "": "",
	} {
		if got := slotText(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// unescape returns the text from which a short text's tag was made.
func unescape(tag string) string {
	if tag == "%" {
		return ""
	}
	return strings.ReplaceAll(strings.ReplaceAll(tag, "%7D", "}"), "%25", "%")
}

// checkName asserts all that is promised of one text, with suffix behind its name, and returns the
// name.
func checkName(t *testing.T, n Namespace, text, suffix string) (name, tag string) {
	t.Helper()
	name, long := n.Name(text)
	if !strings.HasPrefix(name, "p:users:1:{") || !strings.HasSuffix(name, "}") {
		t.Fatalf("%q is named %q", text, name)
	}
	tag = name[len("p:users:1:{") : len(name)-1]
	switch {
	case tag == "", strings.Contains(tag, "}"):
		t.Errorf("%q has the tag %q", text, tag)
	case slotText(name) != tag, slotText(name+suffix) != tag:
		t.Errorf("%q is named %q: the slot is of %q, with %q behind it of %q", text, name, slotText(name), suffix,
			slotText(name+suffix))
	case long != (len(text) > 256):
		t.Errorf("%d bytes, long: %t", len(text), long)
	case !long && unescape(tag) != text:
		t.Errorf("%q has the tag %q, which is that of %q", text, tag, unescape(tag))
	case long && !strings.HasPrefix(tag, fmt.Sprintf("%%~%d~", len(text))): // lease.Entry.Unkey relies on the length
		t.Errorf("%d bytes have the tag %q", len(text), tag)
	case n.Hash(text) != xxhash.Sum64String("users\x00"+text):
		t.Errorf("%q hashes to %#x", text, n.Hash(text))
	}
	return name, tag
}

// checkPair asserts what is promised of two texts.
func checkPair(t *testing.T, n Namespace, a, b string) (tagA, tagB string) {
	t.Helper()
	nameA, tagA := checkName(t, n, a, b)
	nameB, tagB := checkName(t, n, b, a)
	if (nameA == nameB) != (a == b) {
		t.Errorf("%q is named %q, %q is named %q", a, nameA, b, nameB)
	}
	return tagA, tagB
}

// It sees that the guard tag_unescaped is missing.
func TestKeysShareTheirSlot(t *testing.T) {
	n := NewNamespace("p", "users", "1")
	texts := []string{"", "a", "}", "{", "{}", "}{", "a}b", "{a}b", "%", "%7D", "%25", "%%", "a%7Db", "}}", "%~",
		"\x00", "\xff}\n"}
	for _, g := range golden {
		texts = append(texts, g.text, g.tag)
	}
	for _, a := range texts {
		for _, b := range texts {
			checkPair(t, n, a, b)
		}
	}
}

// All texts of up to five of the bytes that escaping is about: none shares its name, or its tag's
// with a text that looks like it.
func TestDifferentTextsHaveDifferentNames(t *testing.T) {
	n := NewNamespace("p", "users", "1")
	seen := make(map[string]string)
	add := func(text string) {
		name, _ := checkName(t, n, text, "}{")
		if other, ok := seen[name]; ok {
			t.Fatalf("%q and %q are both named %q", other, text, name)
		}
		seen[name] = text
	}
	texts := []string{""}
	for range 6 {
		var longer []string
		for _, text := range texts {
			add(text)
			for _, c := range "%}{257D~" {
				longer = append(longer, text+string(c))
			}
		}
		texts = longer
	}

	// Long ones: equally long, of all lengths, each beginning with the last one; and short ones
	// that look like their tags.
	for length := 1; length <= 600; length++ {
		text := strings.Repeat("x", length)
		add(text)
		if length > 1 {
			add(text[1:] + "y")
			add("y" + text[1:])
		}
		if length > maxText {
			_, tag := checkName(t, n, text, "")
			add(tag)
			add(tag[1:])
			add(tag + "}")
		}
	}
}

func FuzzName(f *testing.F) {
	for i, g := range golden {
		f.Add(g.text, golden[(i+1)%len(golden)].text)
		f.Add(g.text, g.tag)
	}
	f.Add("a}b", "a%7Db")
	f.Add("", "%")
	f.Add("same", "same")
	f.Add(strings.Repeat("x", 300), strings.Repeat("x", 299)+"y")
	f.Fuzz(checkNames)
}

func checkNames(t *testing.T, a, b string) {
	n := NewNamespace("p", "users", "1")
	padding := strings.Repeat("%~}{", 70)
	tagA, tagB := checkPair(t, n, a, b)
	checkPair(t, n, tagA, b) // a text that looks like a tag
	checkPair(t, n, tagA, tagB)
	checkPair(t, n, padding+a, padding+b) // long, for any a and b
	checkPair(t, n, padding+a, b)
}

// The same for millions of inputs, without a look at what they cover: each is cut in two.
func TestNameMillions(t *testing.T) {
	inputs := 10_000
	if testenv.Accepting {
		inputs = 2_000_000
	}
	var corpus [][]byte
	for _, g := range golden {
		corpus = append(corpus, []byte(g.text), []byte(g.tag), []byte(g.text+g.text))
	}
	for b := range testenv.Noise(1, inputs, corpus...) {
		checkNames(t, string(b[:len(b)/2]), string(b[len(b)/2:]))
	}
	t.Logf("%d inputs", inputs)
}
