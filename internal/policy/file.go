package policy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// MaxFile is how large a policy file may be, bytes.
const MaxFile = 512 << 10

// Limits on what a file is made of. They are far beyond what people write, and keep a
// file that means harm from costing more than a good one.
const (
	maxLine      = 16 << 10 // bytes
	maxIndent    = 128      // columns before the first word of a line, dashes of lists included
	maxBrackets  = 16       // open at once
	maxDepth     = 16       // of values in values
	maxScopeName = 128      // bytes
)

// File is a policy file: the tables of scopes, by the names of keys and templates.
type File struct {
	Server    *FileTable           `yaml:"server,omitempty"`
	Keys      map[string]FileTable `yaml:"keys,omitempty"`
	Templates map[string]FileTable `yaml:"templates,omitempty"`
}

// FileTable is a [Table] without its scope.
type FileTable struct {
	Default map[Kind]Decision `yaml:"default,omitempty"`
	Rules   []Rule            `yaml:"rules,omitempty"`
}

var scopeName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// ParseFile reads a policy file and checks it as a whole, with the examples of its
// rules. It is YAML without what lets a text mean something else than it seems to:
// no unknown or repeated keys, empty values, anchors, aliases, tags, or second documents.
// Errors say the line.
func ParseFile(data []byte) (File, error) {
	var f File
	root, err := parseInto(data, &f)
	if err != nil {
		return File{}, err
	}
	return f, f.check(root)
}

// ParseTable reads one table by itself, as those of a sandbox are: what is below the
// server in a file. It is checked as a file is.
func ParseTable(data []byte) (FileTable, error) {
	var t FileTable
	root, err := parseInto(data, &t)
	if err != nil {
		return FileTable{}, err
	}
	return t, checkTable(Scope{SandboxScope, "any"}, t, root)
}

func parseInto(data []byte, into any) (root ast.Node, err error) {
	if err := checkFileText(data); err != nil {
		return nil, err
	}
	parsed, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, lineError(err)
	}
	if len(parsed.Docs) != 1 || parsed.Docs[0].Body == nil {
		return nil, errors.New("the file must hold one document; to remove all rules write server: {}")
	}
	root = parsed.Docs[0].Body
	if err := checkNodes(root, 0); err != nil {
		return nil, err
	}
	if err := yaml.NodeToValue(root, into, yaml.Strict()); err != nil {
		return nil, lineError(err)
	}
	return root, nil
}

// checkFileText looks at the bytes, before anything parses them.
func checkFileText(data []byte) error {
	switch {
	case len(data) > MaxFile:
		return fmt.Errorf("the file is larger than %d KiB", MaxFile>>10)
	case !utf8.Valid(data):
		return errors.New("the file is not UTF-8")
	}
	open, number := 0, 0
	for line := range bytes.Lines(data) {
		if number++; len(line) > maxLine {
			return fmt.Errorf("line %d: it is longer than %d KiB", number, maxLine>>10)
		}
		if words := bytes.TrimLeft(line, " -?\t"); len(line)-len(words) > maxIndent {
			return fmt.Errorf("line %d: it is nested too deep", number)
		}
		indent := len(line) - len(bytes.TrimLeft(line, " "))
		for i, r := range string(line) {
			switch {
			case r == '\t' && i <= indent:
				return fmt.Errorf("line %d: indent with spaces, not with tabs", number)
			case r < ' ' && r != '\n' && r != '\r' && r != '\t', r == 0x7f, r == '\ufeff', isDirection(r):
				return fmt.Errorf("line %d: it has %U in it, which cannot be seen", number, r)
			case r == '[' || r == '{':
				open++
			case (r == ']' || r == '}') && open > 0:
				open--
			}
		}
		if open > maxBrackets {
			return fmt.Errorf("line %d: more than %d brackets are open", number, maxBrackets)
		}
	}
	return nil
}

// isDirection tells whether r changes the direction of what follows, so that a text
// is not read as it is.
func isDirection(r rune) bool {
	return r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069' || r == '\u200e' || r == '\u200f'
}

// checkNodes refuses what YAML can do and this file does not need.
func checkNodes(node ast.Node, depth int) error {
	if depth > maxDepth {
		return lineOf(node, "it is nested too deep")
	}
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, value := range n.Values {
			if err := checkNodes(value, depth+1); err != nil {
				return err
			}
		}
		return nil
	case *ast.MappingValueNode:
		if n.Key.IsMergeKey() || n.Key.Type() != ast.StringType {
			return lineOf(n.Key, "a key is a plain word")
		}
		return checkNodes(n.Value, depth+1)
	case *ast.SequenceNode:
		for _, value := range n.Values {
			if err := checkNodes(value, depth+1); err != nil {
				return err
			}
		}
		return nil
	case *ast.StringNode, *ast.LiteralNode:
		return nil
	case *ast.IntegerNode:
		if text := n.GetToken().Value; strings.Trim(text, "0123456789") != "" || len(text) > 1 && text[0] == '0' {
			return lineOf(n, "write the number "+text+" with the digits 0 to 9 alone")
		}
		return nil
	case *ast.NullNode:
		return lineOf(n, "a value is missing; what is not said is left out")
	case *ast.BoolNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return lineOf(n, "put "+n.GetToken().Value+" in quotes")
	case *ast.AnchorNode, *ast.AliasNode:
		return lineOf(n, "anchors and aliases are not taken; write it out")
	case *ast.TagNode:
		return lineOf(n, "tags are not taken")
	case nil:
		return errors.New("a value is missing")
	}
	return lineOf(node, "this part of YAML is not taken: "+node.Type().String())
}

func lineOf(node ast.Node, message string) error {
	return fmt.Errorf("line %d: %s", node.GetToken().Position.Line, message)
}

// lineError tells an error of the YAML package in one line.
func lineError(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil || e.GetToken().Position == nil {
		return fmt.Errorf("the file is not valid: %w", err)
	}
	return fmt.Errorf("line %d: %s", e.GetToken().Position.Line, strings.ReplaceAll(e.GetMessage(), "\n", " "))
}

// check compiles all tables and says the line of what is wrong.
func (f File) check(root ast.Node) error {
	if f.Server == nil && f.Keys == nil && f.Templates == nil {
		return errors.New("the file says nothing; to remove all rules write server: {}")
	}
	if f.Server != nil {
		if err := checkTable(Scope{ServerScope, ""}, *f.Server, below(root, "server")); err != nil {
			return err
		}
	}
	for _, group := range []struct {
		kind   ScopeKind
		word   string
		tables map[string]FileTable
	}{{KeyScope, "keys", f.Keys}, {TemplateScope, "templates", f.Templates}} {
		for _, name := range slices.Sorted(maps.Keys(group.tables)) {
			node := below(below(root, group.word), name)
			if len(name) > maxScopeName || !scopeName.MatchString(name) {
				return lineOf(node, fmt.Sprintf("%s %.40q: there are no such names of %s", group.kind, name, group.word))
			}
			if err := checkTable(Scope{group.kind, name}, group.tables[name], node); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkTable(scope Scope, t FileTable, node ast.Node) error {
	_, err := Compile(Table{Scope: scope, Default: t.Default, Rules: t.Rules})
	var wrong *RuleError
	if errors.As(err, &wrong) {
		if rules, ok := below(node, "rules").(*ast.SequenceNode); ok && wrong.Index < len(rules.Values) {
			node = rules.Values[wrong.Index]
		}
	}
	if err != nil {
		return lineOf(node, fmt.Sprintf("%s: %v", scope, err))
	}
	return nil
}

// below finds the value of a key in a mapping, else the mapping.
func below(node ast.Node, key string) ast.Node {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		return node
	}
	for values := mapping.MapRange(); values.Next(); {
		if values.Key().GetToken().Value == key {
			return values.Value()
		}
	}
	return node
}

// Resolve returns the tables of the file, with the ids that lookup finds for the names of
// keys and templates. Two names of one thing are an error.
func (f File) Resolve(lookup func(kind ScopeKind, name string) (id string, err error)) ([]Table, error) {
	var tables []Table
	if f.Server != nil {
		tables = append(tables, Table{Scope{ServerScope, ""}, f.Server.Default, f.Server.Rules})
	}
	names := map[Scope]string{}
	for _, group := range []struct {
		kind   ScopeKind
		tables map[string]FileTable
	}{{KeyScope, f.Keys}, {TemplateScope, f.Templates}} {
		for _, name := range slices.Sorted(maps.Keys(group.tables)) {
			id, err := lookup(group.kind, name)
			if err != nil {
				return nil, err
			}
			scope := Scope{group.kind, id}
			if other, there := names[scope]; there {
				return nil, fmt.Errorf("%s and %s are the same %s", other, name, group.kind)
			}
			names[scope] = name
			tables = append(tables, Table{scope, group.tables[name].Default, group.tables[name].Rules})
		}
	}
	return tables, nil
}

// FormatFile writes tables as a file that ParseFile reads. name gives the name of a key
// or template for its id. Tables of sandboxes are left out: they are in no file.
func FormatFile(tables []Table, name func(Scope) string) ([]byte, error) {
	var f File
	for _, t := range tables {
		of := FileTable{t.Default, t.Rules}
		switch t.Scope.Kind {
		case ServerScope:
			f.Server = &of
		case KeyScope:
			put(&f.Keys, name(t.Scope), of)
		case TemplateScope:
			put(&f.Templates, name(t.Scope), of)
		}
	}
	if f.Server == nil && f.Keys == nil && f.Templates == nil {
		f.Server = &FileTable{}
	}
	return yaml.MarshalWithOptions(f, yaml.IndentSequence(true))
}

func put(tables *map[string]FileTable, name string, t FileTable) {
	if *tables == nil {
		*tables = map[string]FileTable{}
	}
	(*tables)[name] = t
}
