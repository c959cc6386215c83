package internal

import (
	_ "github.com/go-zeromq/zmq4"
	_ "github.com/moby/buildkit/frontend/dockerfile/dockerignore"
	_ "github.com/moby/buildkit/frontend/dockerfile/instructions"
	_ "github.com/moby/buildkit/frontend/dockerfile/parser"
	_ "github.com/moby/patternmatcher"
	_ "github.com/modelcontextprotocol/go-sdk/mcp"
)
