package internal

import (
	_ "github.com/go-zeromq/zmq4"
)
