// Package templates holds the recipes of the templates that come with the
// program, one folder each: a template.yaml and, when the recipe has files of
// its own, a tree under files/. docs/030_templates.md explains the format.
package templates

import "embed"

// FS has one folder per recipe, named after it.
//
//go:embed all:base all:code-interpreter-v1 all:desktop all:mcp-gateway
var FS embed.FS
