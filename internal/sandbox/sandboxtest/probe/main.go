// Probe is every program in the root image of the core's tests. It is also what
// stands in for an agent that is broken.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	args := os.Args
	switch path.Base(args[0]) {
	case "bash": // bash -l -c COMMAND, of one probe command without quotes
		args = append([]string{"probe"}, strings.Fields(args[len(args)-1])...)
	case "agent":
		beBrokenAgent()
		return
	}
	if len(args) < 2 {
		fail("which command?")
	}
	run(args[1], args[2:])
}

func run(command string, args []string) {
	switch command {
	case "echo":
		fmt.Println(strings.Join(args, " "))
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "cat": // PATH, or - for stdin
		file := os.Stdin
		if args[0] != "-" {
			var err error
			file, err = os.Open(args[0])
			check(err)
		}
		_, err := io.Copy(os.Stdout, file)
		check(err)
	case "write":
		check(os.WriteFile(args[0], []byte(args[1]), 0o644))
	case "append": // PATH, which it keeps open
		file, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		check(err)
		_, err = file.WriteString("appended")
		check(err)
		fmt.Println("appending")
		wait()
		runtime.KeepAlive(file)
	case "exists": // exits with 1 when it does not
		_, err := os.Stat(args[0])
		check(err)
	case "exit":
		code, err := strconv.Atoi(args[0])
		check(err)
		os.Exit(code)
	case "sleep":
		fmt.Println("asleep")
		wait()
	case "listen": // ADDRESS
		listen(args[0])
	case "remember": // ADDRESS
		remember(args[0])
	case "dial": // ADDRESS
		_, err := net.Dial("tcp", args[0])
		check(err)
	case "get": // ADDRESS HOST PATH, by HTTP
		conn, err := net.Dial("tcp", args[0])
		check(err)
		fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n", args[2], args[1])
		_, err = io.Copy(os.Stdout, conn)
		check(err)
	case "eat":
		eat()
	case "burn":
		fmt.Println("burning")
		for n := 0; ; n++ {
		}
	case "hold": // MEBIBYTES
		hold(args[0])
	case "fill": // PATH
		fill(args[0])
	case "fork":
		forkUntilRefused()
	default:
		fail("no command " + command)
	}
}

// listen answers each connection, when its peer has ended its half, with what
// the peer sent, in capitals.
func listen(address string) {
	listener, err := net.Listen("tcp", address)
	check(err)
	fmt.Println("listening")
	for {
		conn, err := listener.Accept()
		check(err)
		go func() {
			defer conn.Close()
			text, _ := io.ReadAll(conn)
			conn.Write(bytes.ToUpper(text))
		}()
	}
}

// remember keeps in memory what it is sent, and answers with all of it.
func remember(address string) {
	listener, err := net.Listen("tcp", address)
	check(err)
	fmt.Println("listening")
	var all []byte
	for {
		conn, err := listener.Accept()
		check(err)
		text, _ := io.ReadAll(conn)
		all = append(all, text...)
		conn.Write(all)
		conn.Close()
	}
}

// eat takes memory without end.
func eat() {
	fmt.Println("eating")
	var hold [][]byte
	for {
		block := make([]byte, 4<<20)
		for i := range block {
			block[i] = byte(i)
		}
		hold = append(hold, block)
		_ = hold
	}
}

// hold takes memory and keeps it.
func hold(mebibytes string) {
	n, err := strconv.Atoi(mebibytes)
	check(err)
	block := make([]byte, n<<20)
	for i := range block {
		block[i] = byte(i)
	}
	fmt.Println("holding")
	wait()
	runtime.KeepAlive(block)
}

// fill writes a file until there is no room.
func fill(name string) {
	file, err := os.Create(name)
	block := bytes.Repeat([]byte("tombolo "), 128<<10)
	written := 0
	for err == nil {
		var n int
		n, err = file.Write(block)
		written += n
	}
	fmt.Println("filled", written>>20, err)
}

// forkUntilRefused makes children that do nothing, which share its memory, until
// there may be no more, and then waits to be killed.
func forkUntilRefused() {
	for n := 0; ; n++ {
		pid, _, errno := syscall.RawSyscall(syscall.SYS_FORK, 0, 0, 0)
		if errno != 0 {
			fmt.Println("forked", n, errno)
			wait()
		}
		if pid == 0 { // of the runtime there is only this thread: no Go code from here on
			for {
				syscall.RawSyscall(syscall.SYS_PAUSE, 0, 0, 0)
			}
		}
	}
}

// wait waits to be killed. (The runtime takes a select{} alone for a deadlock.)
func wait() {
	for {
		syscall.Pause()
	}
}

// beBrokenAgent is broken in the way that the last bytes of the program say.
func beBrokenAgent() {
	program, err := os.ReadFile("/proc/self/exe")
	check(err)
	if bytes.HasSuffix(program, []byte("exits")) {
		fail("this agent is broken")
	}
	listener, err := net.Listen("tcp", "0.0.0.0:49982") // hostapi.HostPort
	check(err)
	fmt.Println("this agent never answers")
	for {
		_, err := listener.Accept()
		check(err)
	}
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
