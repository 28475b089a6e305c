package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// The OpenAPI document is made from the routes and the types of what they take
// and give, so that it cannot say something else.

type object = map[string]any

// document writes the OpenAPI document (version 3.1) of the routes.
func document(cfg *Config) ([]byte, error) {
	paths := map[string]object{}
	for i := range cfg.Routes {
		r := &cfg.Routes[i]
		o, err := describeRoute(r)
		if err != nil {
			return nil, err
		}
		if paths[r.Path] == nil {
			paths[r.Path] = object{}
		}
		paths[r.Path][strings.ToLower(r.Method)] = o
	}
	doc := object{
		"openapi": "3.1.0",
		"info":    object{"title": cfg.Title, "version": cfg.Version},
		"paths":   paths,
	}
	if len(cfg.Token) > 0 {
		doc["components"] = object{"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}}}
		doc["security"] = []object{{"token": []string{}}}
	}
	return json.MarshalIndent(doc, "", "  ")
}

func describeRoute(r *Route) (object, error) {
	answer := r.Answer
	if r.Long {
		answer = Operation{}
	}
	ok, err := Schema(reflect.TypeOf(answer))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}
	bad, err := Schema(reflect.TypeFor[ErrorBody]())
	if err != nil {
		return nil, err
	}
	answers := object{"200": content("done", ok), "default": content("not done, and why", bad)}
	o := object{"summary": r.Summary, "responses": answers}
	params := []object{}
	for _, part := range strings.Split(r.Path, "/") {
		if name, is := strings.CutPrefix(part, "{"); is {
			params = append(params, object{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	if r.Long {
		answers["202"] = content("it runs: ask for the operation", ok)
		params = append(params, object{"name": "wait", "in": "query", "description": "how long to wait for the outcome, as 5s", "schema": object{"type": "string"}})
	}
	if len(params) > 0 {
		o["parameters"] = params
	}
	if r.Body != nil {
		body, err := Schema(reflect.TypeOf(r.Body).Elem())
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
		}
		o["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": body}}}
	}
	return o, nil
}

func content(text string, schema object) object {
	return object{"description": text, "content": object{"application/json": object{"schema": schema}}}
}

// Schema is the JSON schema of what encoding/json makes of a type. Structs name
// their fields in the tag, without exception.
func Schema(t reflect.Type) (object, error) {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}, nil
	case t.Kind() == reflect.Pointer:
		return Schema(t.Elem())
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}, nil
	case reflect.String:
		return object{"type": "string"}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}, nil
	case reflect.Float64, reflect.Float32:
		return object{"type": "number"}, nil
	case reflect.Slice, reflect.Array:
		items, err := Schema(t.Elem())
		// A slice of no elements may be null.
		return object{"type": []string{"array", "null"}, "items": items}, err
	case reflect.Map:
		values, err := Schema(t.Elem())
		return object{"type": []string{"object", "null"}, "additionalProperties": values}, err
	case reflect.Struct:
		props, required := object{}, []string{}
		err := fields(t, props, &required)
		return object{"type": "object", "properties": props, "required": required, "additionalProperties": false}, err
	}
	return nil, fmt.Errorf("a %v has no schema", t)
}

// fields adds the fields of a struct, those of embedded ones as its own.
func fields(t reflect.Type, props object, required *[]string) error {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			if err := fields(f.Type, props, required); err != nil {
				return err
			}
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			return fmt.Errorf("field %s of %v has no name in JSON", f.Name, t)
		}
		s, err := Schema(f.Type)
		if err != nil {
			return err
		}
		props[name] = s
		if !strings.Contains(opts, "omitempty") {
			*required = append(*required, name)
		}
	}
	return nil
}
