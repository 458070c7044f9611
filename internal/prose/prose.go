// Package prose checks how README.md, SECURITY.md and the pages of docs are written: how wide their
// lines are, how large README.md is, and how sentences begin. The test of the root checks their
// links and their snippets. Of the comments of Go files it checks how sentences begin.
package prose

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	mostColumns = 100
	mostOfPage  = 12 << 10 // of README.md

	ruleRelative = "a sentence begins with a free relative"
)

var (
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	comment = regexp.MustCompile(`(?s)<!--.*?-->`)
	span    = regexp.MustCompile("`[^`\n]*`")
	target  = regexp.MustCompile(`\]\([^()\s]*\)`)
	// A sentence that begins with a free relative; a question may.
	relative = regexp.MustCompile(`(?:^|[.!?:]\)? +|[.!?:]\*\* +|\| +|\()(?:\*\*)?((?:Who|What|Whoever|Whatever|Whose)\b[^.?!|]*\??)`)
	item     = regexp.MustCompile(`^(?:[-*]|\d+\.) +`)
)

// Flaws are what is wrong with a page, a line each: the rule, and behind the colon an example.
func Flaws(page, text string) (all []string) {
	told := make(map[string]bool)
	tell := func(rule, example string) {
		if !told[rule] {
			told[rule] = true
			all = append(all, fmt.Sprintf("%s: %s: %s", page, rule, example))
		}
	}
	if page == "README.md" && len(text) > mostOfPage {
		tell(fmt.Sprintf("more than %d bytes", mostOfPage), fmt.Sprint(len(text)))
	}
	blank := func(code string) string { return strings.Repeat("\n", strings.Count(code, "\n")) }
	text = comment.ReplaceAllStringFunc(fenced.ReplaceAllStringFunc(text, blank), blank)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if table := strings.HasPrefix(strings.TrimSpace(line), "|"); !table && !strings.HasPrefix(line, "    ") {
			if shown := target.ReplaceAllString(line, "]"); utf8.RuneCountInString(shown) > mostColumns {
				tell(fmt.Sprintf("a line of more than %d columns", mostColumns), line)
			}
		}
	}
	if found := relatives(text); len(found) > 0 {
		tell(ruleRelative, found[0])
	}
	return all
}

// CommentFlaws are what is wrong with the comments of a Go file, as Flaws of a page. A file that is
// generated has none.
func CommentFlaws(file, source string) (all []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(f) {
		return nil, err
	}
	fields := make(map[*ast.CommentGroup]string) // a field may be called What
	ast.Inspect(f, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Doc != nil && len(field.Names) > 0 {
			fields[field.Doc] = field.Names[0].Name + " "
		}
		return true
	})
	for _, group := range f.Comments {
		for _, found := range relatives(strings.TrimPrefix(group.Text(), fields[group])) {
			all = append(all, fmt.Sprintf("%s: %s: %s", file, ruleRelative, found))
		}
	}
	return all, nil
}

// relatives are the sentences of a text that begin with a free relative.
func relatives(text string) (all []string) {
	for _, sentence := range sentences(text) {
		for _, m := range relative.FindAllStringSubmatch(sentence, -1) {
			if !strings.HasSuffix(m[1], "?") {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// sentences are the paragraphs, items and lines of tables of a page, without code, each on a line.
func sentences(text string) (all []string) {
	text = span.ReplaceAllString(text, "code")
	var paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			all = append(all, strings.Join(paragraph, " "))
		}
		paragraph = nil
	}
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "", strings.HasPrefix(line, "#"):
			end()
		case strings.HasPrefix(line, "|"):
			end()
			all = append(all, line)
		case item.MatchString(line):
			end()
			paragraph = []string{item.ReplaceAllString(line, "")}
		default:
			paragraph = append(paragraph, line)
		}
	}
	return all
}
