package internal

import (
	_ "github.com/go-zeromq/zmq4"
	_ "github.com/modelcontextprotocol/go-sdk/mcp"
)
