// Probe is the PID 1 of the engine's contract tests.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"
)

func main() {
	switch os.Args[1] {
	case "count": // one line a step, the number kept in memory and in a file
		for n := 1; ; n++ {
			os.WriteFile("/count", fmt.Append(nil, n), 0o644)
			fmt.Println("count", n)
			time.Sleep(20 * time.Millisecond)
		}
	case "reboots": // counts its starts in a file, then as "count" does
		raw, _ := os.ReadFile("/starts")
		raw = append(raw, 'x')
		os.WriteFile("/starts", raw, 0o644)
		fmt.Println("start", len(raw))
		for n := 1; ; n++ {
			fmt.Println("count", n)
			time.Sleep(20 * time.Millisecond)
		}
	case "write": // writes what an archive of its disk is to hold, then as "count" does
		os.Mkdir("/dir", 0o750)
		os.WriteFile("/dir/small", []byte("text"), 0o640)
		os.Link("/dir/small", "/dir/hard")
		os.Symlink("dir/small", "/link")
		hole, _ := os.Create("/hole")
		hole.WriteAt([]byte("middle"), 20_000_000)
		hole.Truncate(3 << 30)
		large, _ := os.Create("/large")
		block := make([]byte, 1<<20)
		for i := range 400 {
			block[i] = byte(i)
			large.Write(block)
		}
		fmt.Println("removed", os.Remove("/probe"))
		for n := 1; ; n++ {
			fmt.Println("count", n)
			time.Sleep(20 * time.Millisecond)
		}
	case "spawn": // runs itself with what /control/spawn says, whenever that changes
		fmt.Println("ready")
		for last := ""; ; time.Sleep(20 * time.Millisecond) {
			if word, _ := os.ReadFile("/control/spawn"); string(word) != last {
				last = string(word)
				exec.Command("/probe", "exit", last).Run()
			}
		}
	case "exit":
		fmt.Println("bye")
	case "fill": // writes to the root file system until it is full
		file, err := os.Create("/fill")
		block := make([]byte, 1<<20)
		written := 0
		for err == nil {
			var n int
			n, err = file.Write(block)
			written += n
		}
		fmt.Println("filled", written>>20, err)
		sleep()
	case "parent": // has a child eat memory, ends it when /control/relieve appears
		child := exec.Command("/probe", "eat")
		child.Stdout = os.Stdout
		fmt.Println("started", child.Start())
		for {
			if _, err := os.Stat("/control/relieve"); err == nil {
				child.Process.Kill()
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		child.Wait()
		fmt.Println("relieved")
		sleep()
	case "burn": // keeps two processors busy
		fmt.Println("burning")
		go spin()
		spin()
	case "hold": // takes 230 MiB, then as "count" does
		held := make([]byte, 230<<20)
		for i := 0; i < len(held); i += os.Getpagesize() {
			held[i] = byte(i>>12) | 1
		}
		for n := 1; ; n++ {
			fmt.Println("count", n+int(held[n])-int(held[n])) // it is in use
			time.Sleep(20 * time.Millisecond)
		}
	case "eat": // takes memory page by page
		var hold [][]byte
		for {
			block := make([]byte, 4<<20)
			for i := 0; i < len(block); i += os.Getpagesize() {
				block[i] = 1
			}
			hold = append(hold, block)
			_ = hold
		}
	}
}

func spin() {
	for n := 0; ; n++ {
	}
}

// sleep never ends. An empty select would be taken for a deadlock.
func sleep() {
	for {
		time.Sleep(time.Hour)
	}
}
