package testutil

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// SchemaOf is the schema of a route's answer in a decoded OpenAPI document, nil
// where there is none.
func SchemaOf(doc map[string]any, method, path string) map[string]any {
	var x any = doc
	for _, k := range []string{"paths", path, strings.ToLower(method), "responses", "200", "content", "application/json", "schema"} {
		o, _ := x.(map[string]any)
		x = o[k]
	}
	s, _ := x.(map[string]any)
	return s
}

// Meets holds a JSON text against a JSON schema, as far as package api makes
// them. The error says where they part.
func Meets(schema map[string]any, text string) error {
	var x any
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		return err
	}
	return meets(schema, x, "")
}

func meets(schema map[string]any, x any, at string) error {
	if kinds := kindsOf(schema["type"]); !slices.ContainsFunc(kinds, func(k string) bool { return isKind(x, k) }) {
		return fmt.Errorf("%s is %v, not of type %v", orTop(at), x, kinds)
	}
	switch x := x.(type) {
	case []any:
		items, _ := schema["items"].(map[string]any)
		for i, e := range x {
			if err := meets(items, e, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		return meetsObject(schema, x, at)
	}
	return nil
}

func meetsObject(schema, x map[string]any, at string) error {
	props, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, has := x[name.(string)]; !has {
			return fmt.Errorf("%s lacks %v", orTop(at), name)
		}
	}
	others, _ := schema["additionalProperties"].(map[string]any)
	for name, e := range x {
		s, known := props[name].(map[string]any)
		if !known {
			s = others
		}
		if s == nil {
			return fmt.Errorf("%s has %s, of which the schema does not know", orTop(at), name)
		}
		if err := meets(s, e, at+"."+name); err != nil {
			return err
		}
	}
	return nil
}

func orTop(at string) string {
	if at == "" {
		return "the answer"
	}
	return at
}

func kindsOf(x any) (all []string) {
	switch x := x.(type) {
	case string:
		return []string{x}
	case []any:
		for _, k := range x {
			all = append(all, fmt.Sprint(k))
		}
	}
	return all
}

func isKind(x any, kind string) bool {
	switch x := x.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case float64:
		return kind == "number" || kind == "integer" && x == math.Trunc(x)
	case []any:
		return kind == "array"
	}
	return kind == "object"
}
