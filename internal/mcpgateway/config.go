package mcpgateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Limits on what a configuration may ask for.
const (
	maxConfig  = 1 << 20 // bytes
	maxServers = 32
	maxArgs    = 256 // of one server
)

// Server is one MCP server to run: a program that speaks MCP on its standard
// streams.
type Server struct {
	// Name is the one it was configured by.
	Name    string
	Command []string
	Env     map[string]string
	// Dir is where it runs; empty is the home of the user it runs as.
	Dir string

	install installer // nil when nothing needs to be there first
}

// ParseConfig reads the value of the `mcp` option of Sandbox.create: an object
// with a field for each server. Its name is one of the catalogue, with the keys
// the catalogue gives it; or github/OWNER/REPO, with runCmd, installCmd and envs
// (in Python run_cmd and install_cmd); or any name, with command and env, which
// is ours. A field it does not know is an error.
func ParseConfig(text []byte) ([]Server, error) {
	if len(text) > maxConfig {
		return nil, fmt.Errorf("the configuration is longer than %d bytes", maxConfig)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf(`the configuration is not a JSON object, such as {"time": {}}: %w`, err)
	}
	switch {
	case len(fields) == 0:
		return nil, errors.New(`the configuration names no server; give at least one, such as {"time": {}}`)
	case len(fields) > maxServers:
		return nil, fmt.Errorf("the configuration names %d servers; the limit is %d", len(fields), maxServers)
	}
	var servers []Server
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		s, err := parseServer(name, fields[name])
		if err != nil {
			return nil, fmt.Errorf("server %q: %w", name, err)
		}
		s.Name = name
		servers = append(servers, s)
	}
	return servers, nil
}

func parseServer(name string, text json.RawMessage) (Server, error) {
	values, err := object(text)
	if err != nil {
		return Server{}, err
	}
	if _, custom := values["command"]; custom {
		return parseCommand(text)
	}
	if path, ok := strings.CutPrefix(name, "github/"); ok {
		return parseGitHub(path, text)
	}
	entry, ok := catalogue[name]
	if !ok {
		return Server{}, unknown()
	}
	return entry.configure(values)
}

// unknown is what is said of a server that the catalogue does not have.
func unknown() error {
	return fmt.Errorf("not in the catalogue, which has %s; any other server can be given by its command: "+
		`{"command": ["npx", "-y", "PACKAGE"], "env": {}}`, strings.Join(Names(), ", "))
}

func parseCommand(text json.RawMessage) (Server, error) {
	var c struct {
		Command []string          `json:"command"`
		Env     map[string]string `json:"env"`
		Cwd     string            `json:"cwd"`
	}
	if err := strict(text, &c); err != nil {
		return Server{}, err
	}
	switch {
	case len(c.Command) == 0 || c.Command[0] == "":
		return Server{}, errors.New("command is empty; it is a list of a program and its arguments")
	case len(c.Command) > maxArgs:
		return Server{}, fmt.Errorf("command has more than %d parts", maxArgs)
	case c.Cwd != "" && !filepath.IsAbs(c.Cwd):
		return Server{}, fmt.Errorf("cwd %q is not an absolute path", c.Cwd)
	}
	return Server{Command: c.Command, Env: c.Env, Dir: c.Cwd}, checkEnv(c.Env)
}

var repository = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*$`)

// parseGitHub reads a server that lies in a repository. The JavaScript client
// writes its keys in one way, the Python client in another.
func parseGitHub(path string, text json.RawMessage) (Server, error) {
	var c struct {
		RunCmd     string            `json:"runCmd"`
		RunCmd2    string            `json:"run_cmd"`
		InstallCmd string            `json:"installCmd"`
		Install2   string            `json:"install_cmd"`
		Envs       map[string]string `json:"envs"`
	}
	if err := strict(text, &c); err != nil {
		return Server{}, err
	}
	run := c.RunCmd + c.RunCmd2
	switch {
	case !repository.MatchString(path):
		return Server{}, fmt.Errorf("%q is not the OWNER/REPO of a repository", path)
	case run == "":
		return Server{}, errors.New("runCmd is missing: the command that starts the server")
	}
	clone := clone{path: path, command: c.InstallCmd + c.Install2, env: c.Envs}
	return Server{Command: []string{"/bin/bash", "-c", run}, Env: c.Envs, Dir: clone.dir(), install: clone}, checkEnv(c.Envs)
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func checkEnv(env map[string]string) error {
	for name, value := range env {
		if !envName.MatchString(name) || strings.ContainsRune(value, 0) {
			return fmt.Errorf("%q is not a variable with a value", name)
		}
	}
	return nil
}

// configure makes a server of a catalogue's entry.
func (s server) configure(values map[string]any) (Server, error) {
	who, err := runAs()
	if err != nil {
		return Server{}, err
	}
	result := Server{Env: map[string]string{}, install: s.installer()}
	for name, value := range s.env {
		if below, ok := strings.CutPrefix(value, "~/"); ok {
			value = filepath.Join(who.home, below)
		}
		result.Env[name] = value
	}
	result.Command = append([]string{s.installer().program(s.bin)}, s.args...)
	for _, name := range slices.Sorted(maps.Keys(s.keys)) {
		k := s.keys[name]
		words, err := wordsOf(values[name])
		if err != nil {
			return Server{}, fmt.Errorf("%s: %w", name, err)
		}
		if len(words) == 0 {
			if k.required {
				return Server{}, fmt.Errorf("%s is missing; the keys are %s", name, s.describe())
			}
			continue
		}
		switch {
		case k.args:
			result.Command = append(result.Command, words...)
		case k.alone && len(words) > 1: // the server takes one, or any without
		case k.flag != "":
			for _, word := range words {
				result.Command = append(result.Command, k.flag, word)
			}
		default:
			result.Env[k.env] = strings.Join(words, ",")
		}
	}
	for name := range values {
		if _, ok := s.keys[name]; !ok {
			return Server{}, fmt.Errorf("%s is not a key of it; the keys are %s", name, s.describe())
		}
	}
	if len(result.Command) > maxArgs {
		return Server{}, fmt.Errorf("more than %d arguments", maxArgs)
	}
	return result, checkEnv(result.Env)
}

// describe lists the keys, the optional ones in brackets.
func (s server) describe() string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.keys)) {
		if !s.keys[name].required {
			name = "[" + name + "]"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// wordsOf are the strings of a value: a list has several, nothing or an empty
// string has none.
func wordsOf(value any) ([]string, error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case string:
		if v == "" {
			return nil, nil
		}
		if strings.ContainsRune(v, 0) {
			return nil, errors.New("has a NUL byte")
		}
		return []string{v}, nil
	case json.Number:
		return []string{v.String()}, nil
	case bool:
		return []string{fmt.Sprint(v)}, nil
	case []any:
		var words []string
		for _, item := range v {
			more, err := wordsOf(item)
			if err != nil {
				return nil, err
			}
			words = append(words, more...)
		}
		return words, nil
	default:
		return nil, errors.New("is neither text, a number, true or false, nor a list of them")
	}
}

// object reads a JSON object; null is an empty one.
func object(text json.RawMessage) (map[string]any, error) {
	var values map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&values); err != nil {
		return nil, errors.New("its configuration is not a JSON object")
	}
	return values, nil
}

// strict reads a JSON object and no fields it does not know.
func strict(text json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("its configuration: %s: %s where %s has to be", wrong.Field, wrong.Value, shape(wrong.Type))
	}
	if err != nil {
		return fmt.Errorf("its configuration: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("its configuration is more than one value")
	}
	return nil
}

// shape is what a type is in JSON, in words.
func shape(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list of strings"
	case reflect.Map:
		return "an object of strings"
	}
	return "a string"
}
