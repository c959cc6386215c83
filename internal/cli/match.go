package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// matchField is a field of a match: its name in JSON, and whether it is a list.
type matchField struct {
	name string
	list bool
	text bool // else a number
}

// matchFields are the fields of a match by both names they have, that of the file and
// that of JSON.
var matchFields = func() map[string]matchField {
	fields := map[string]matchField{}
	for f := range reflect.TypeFor[policy.Match]().Fields() {
		inJSON, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inFile, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		field := matchField{name: inJSON, list: f.Type.Kind() == reflect.Slice, text: f.Type.Kind() != reflect.Int}
		fields[inJSON], fields[inFile] = field, field
	}
	return fields
}()

// parseMatch reads host=a.example,port=443, or JSON, with the names of the file of rules
// or those of JSON. One value needs no list.
func parseMatch(texts []string) (*policy.Match, error) {
	given, err := readMatch(texts)
	if err != nil {
		return nil, err
	}
	named := map[string]any{}
	for name, value := range given {
		field, known := matchFields[name]
		if !known {
			return nil, fmt.Errorf("--match: there is no field %q; the fields are those of a rule's match, such as host, port, path, command or longer-than", name)
		}
		if _, twice := named[field.name]; twice {
			return nil, fmt.Errorf("--match: %s is there twice", name)
		}
		if named[field.name], err = field.value(value); err != nil {
			return nil, fmt.Errorf("--match: %s: %w", name, err)
		}
	}
	raw, err := json.Marshal(named)
	if err != nil {
		return nil, err
	}
	var m policy.Match
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("--match: %w", err)
	}
	return &m, nil
}

// readMatch reads the fields as they are given, each with one value or a list of them.
func readMatch(texts []string) (map[string]any, error) {
	fields := map[string]any{}
	if len(texts) == 1 && strings.HasPrefix(strings.TrimSpace(texts[0]), "{") {
		decoder := json.NewDecoder(strings.NewReader(texts[0]))
		decoder.UseNumber()
		if err := decoder.Decode(&fields); err != nil {
			return nil, fmt.Errorf("--match: %w", err)
		}
		if decoder.More() {
			return nil, errors.New("--match: there is something after the JSON")
		}
		return fields, nil
	}
	for part := range strings.SplitSeq(strings.Join(texts, ","), ",") {
		name, value, found := strings.Cut(part, "=")
		if !found || value == "" {
			return nil, fmt.Errorf("--match %q: use FIELD=VALUE, joined by commas, or JSON where a value has a comma", part)
		}
		list, _ := fields[name].([]any)
		fields[name] = append(list, value)
	}
	return fields, nil
}

// value is what JSON has for a field that was given a value or a list.
func (f matchField) value(given any) (any, error) {
	list, is := given.([]any)
	if !is {
		list = []any{given}
	}
	texts := make([]string, len(list))
	for i, one := range list {
		switch one := one.(type) {
		case string:
			texts[i] = one
		case json.Number:
			texts[i] = one.String()
		default:
			return nil, errors.New("use a text or a number, or a list of them")
		}
	}
	switch {
	case f.list:
		return texts, nil
	case len(texts) != 1:
		return nil, errors.New("it takes one value")
	case f.text:
		return texts[0], nil
	}
	number := json.Number(texts[0])
	if _, err := number.Int64(); err != nil {
		return nil, fmt.Errorf("%q is not a number", texts[0])
	}
	return number, nil
}
