//go:build !amd64

package gvisor

func prepareCPUID() {}
