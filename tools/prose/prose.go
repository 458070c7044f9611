// Package prose checks the language of README.md, SECURITY.md, the pages of docs, the Go files that
// are not tests, and the descriptions of guards: the width of lines, phrases
// that readers have to read twice, and the names of receivers. Package internal/test/docs checks
// links and snippets.
package prose

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns = 100

	ruleRelative = "a sentence begins with a free relative"
	ruleSubject  = "a description does not begin with its subject"
)

// phrases lists words and constructions to avoid in comments, pages and messages, and what to write
// instead.
var phrases = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{word(`tells?|telling|told`), "report, notify, pass"},
	{word(`answer(s|ed|ing)?`), "return, reply, serve"},
	{word(`(is|are|was|were) what`), "name the thing"},
	{word(`as \w+( \w+){0,3} (has|have) (it|them|him)`), "according to"},
	{word(`(who|what|which|where)ever`), "the caller, any"},
	{word(`he|his|him|himself`), "the user, the caller"},
	{word(`but for|taken that|lest|oftener`), "except, because"},
	{word(`at the (most|least)`), "at most, at least"},
	{word(`the (more|longer|later|less|fewer|earlier|sooner)\b[^.;]*\bthe \w+er`), "two sentences"},
	{word(`nobody|somebody|no one`), "name the actor"},
	{word(`hear|hears|heard`), "receive"},
	{word(`beside`), "next to, in addition to"},
	{word(`meanwhile`), "until then, while"},
	{word(`doubtful|firm|strange|stray|ill|ills|swift|ear|ears`), "the word of the field"},
	{word(`gives? out|goes on|is over|are over`), "return, continue, has ended"},
}

func word(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b(` + pattern + `)\b`) }

var (
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	comment = regexp.MustCompile(`(?s)<!--.*?-->`)
	span    = regexp.MustCompile("`[^`\n]*`")
	target  = regexp.MustCompile(`\]\([^()\s]*\)`)
	// relative matches a sentence that begins with a free relative. A question may begin so.
	relative = regexp.MustCompile(
		`(?:^|[.!?:]\)? +|[.!?:]\*\* +|\| +|\()(?:\*\*)?((?:Who|What|Whoever|Whatever|Whose)\b[^.?!|]*\??)`)
	item = regexp.MustCompile(`^(?:[-*]|\d+\.) +`)
	// described matches a guard and its description. noSubject matches a description that continues
	// the one before it, or that begins with a free relative.
	described = regexp.MustCompile(`(?m)^guard .*\n(.*)$`)
	noSubject = regexp.MustCompile(`^(and|also|but|for|it|neither|nor|or|that|they|unless|what|who|whose)\b`)
)

// PageFlaws returns the flaws of a page, each as "page: rule: example". It returns each rule once.
func PageFlaws(page, text string) (all []string) {
	reported := make(map[string]bool)
	report := func(rule, example string) {
		if !reported[rule] {
			reported[rule] = true
			all = append(all, fmt.Sprintf("%s: %s: %s", page, rule, example))
		}
	}
	blank := func(code string) string { return strings.Repeat("\n", strings.Count(code, "\n")) }
	text = comment.ReplaceAllStringFunc(fenced.ReplaceAllStringFunc(text, blank), blank)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if table := strings.HasPrefix(strings.TrimSpace(line), "|"); !table && !strings.HasPrefix(line, "    ") {
			if shown := target.ReplaceAllString(line, "]"); utf8.RuneCountInString(shown) > maxColumns {
				report(fmt.Sprintf("a line of more than %d columns", maxColumns), line)
			}
		}
	}
	for _, sentence := range sentences(text) {
		for _, rule := range phrasesIn(target.ReplaceAllString(sentence, "]")) {
			report(rule, sentence)
		}
	}
	if found := relatives(text); len(found) > 0 {
		report(ruleRelative, found[0])
	}
	return all
}

// GoFlaws returns the flaws of a Go file, each as "file: rule: example": those of its comments, of
// its messages and of the names of its receivers. A generated file has none.
func GoFlaws(file, source string) (all []string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(f) {
		return nil, err
	}
	report := func(rule, example string) {
		all = append(all, fmt.Sprintf("%s: %s: %s", file, rule, example))
	}
	fields := make(map[*ast.CommentGroup]string) // a field can be named What
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Doc != nil && len(n.Names) > 0 {
				fields[n.Doc] = n.Names[0].Name + " "
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && isMessage(text) {
				for _, rule := range phrasesIn(text) {
					report(rule, text)
				}
			}
		case *ast.FuncDecl:
			if rule := receiverFlaw(n); rule != "" {
				report(rule, n.Name.Name)
			}
		}
		return true
	})
	for _, group := range f.Comments {
		text := strings.TrimPrefix(group.Text(), fields[group])
		for _, found := range relatives(text) {
			report(ruleRelative, found)
		}
		for _, sentence := range sentences(text) {
			for _, rule := range phrasesIn(sentence) {
				report(rule, sentence)
			}
		}
	}
	return all, nil
}

// GuardFlaws returns the flaws of the descriptions in a list of guards (tools/mutant), each as
// "file: rule: example". The tool prints each description alone.
func GuardFlaws(file, list string) (all []string) {
	for _, found := range described.FindAllStringSubmatch(list, -1) {
		text := found[1]
		rules := phrasesIn(text)
		if utf8.RuneCountInString(text) > maxColumns {
			rules = append(rules, fmt.Sprintf("a line of more than %d columns", maxColumns))
		}
		if noSubject.MatchString(text) {
			rules = append(rules, ruleSubject)
		}
		for _, rule := range rules {
			all = append(all, fmt.Sprintf("%s: %s: %s", file, rule, text))
		}
	}
	return all
}

// isMessage reports whether a string literal is text for people: it has several words on one line.
func isMessage(text string) bool {
	return strings.Contains(text, " ") && !strings.Contains(text, "\n")
}

// receiverFlaw returns the rule that the receiver of f breaks, or "". A receiver is named by the
// first letter of its type.
func receiverFlaw(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
		return ""
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
			continue
		case *ast.IndexExpr:
			t = x.X
			continue
		case *ast.IndexListExpr:
			t = x.X
			continue
		}
		break
	}
	typ, name := t.(*ast.Ident).Name, f.Recv.List[0].Names[0].Name
	if name == "_" || name == strings.ToLower(typ[:1]) {
		return ""
	}
	return fmt.Sprintf("the receiver %s of %s", name, typ)
}

// phrasesIn returns a rule for each phrase that text contains. Code in backquotes is skipped.
func phrasesIn(text string) (rules []string) {
	text = span.ReplaceAllString(text, "code")
	for _, p := range phrases {
		if found := p.pattern.FindString(text); found != "" {
			rules = append(rules, fmt.Sprintf("%q, write %s", strings.ToLower(found), p.instead))
		}
	}
	return rules
}

// relatives returns the sentences of a text that begin with a free relative.
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

// sentences returns the paragraphs, list items and table rows of a text, each on one line. Code in
// backquotes is replaced.
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
