package tool

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// socket is a line of /proc/net/tcp and its like.
type socket struct {
	netid, state string
	local, peer  netip.AddrPort
}

// ss lists sockets: -t, -u, -l, -a, -n, -H, -4, -6, and the filter sport = :PORT.
func ss(args []string, proc string, out io.Writer) error {
	var tcp, udp, listening, all, bare, four, six bool
	var filter []string
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			filter = append(filter, arg)
			continue
		}
		switch arg {
		case "--tcp":
			arg = "-t"
		case "--udp":
			arg = "-u"
		case "--listening":
			arg = "-l"
		case "--numeric":
			arg = "-n"
		case "--all":
			arg = "-a"
		case "--no-header":
			arg = "-H"
		}
		for _, letter := range arg[1:] {
			switch letter {
			case 't':
				tcp = true
			case 'u':
				udp = true
			case 'l':
				listening = true
			case 'a':
				all = true
			case 'H':
				bare = true
			case '4':
				four = true
			case '6':
				six = true
			case 'n':
			default:
				return unknown(SS, 255, arg)
			}
		}
	}
	port, err := sourcePort(filter)
	if err != nil {
		return err
	}
	if !tcp && !udp {
		tcp, udp = true, true
	}
	if !bare {
		fmt.Fprintf(out, "%-5s %-10s %-6s %-6s %25s %25s\n", "Netid", "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port")
	}
	for _, family := range []struct {
		file string
		want bool
	}{{"udp", udp && !six || udp && four}, {"udp6", udp && !four || udp && six}, {"tcp", tcp && !six || tcp && four}, {"tcp6", tcp && !four || tcp && six}} {
		if !family.want {
			continue
		}
		sockets, err := readSockets(filepath.Join(proc, "net", family.file), strings.TrimSuffix(family.file, "6"))
		if err != nil {
			return err
		}
		for _, s := range sockets {
			waits := s.state == "LISTEN" || s.state == "UNCONN"
			if all || listening == waits {
				if port < 0 || int(s.local.Port()) == port {
					fmt.Fprintf(out, "%-5s %-10s %-6d %-6d %25s %25s\n", s.netid, s.state, 0, 0, address(s.local), address(s.peer))
				}
			}
		}
	}
	return nil
}

// sourcePort reads the filter "sport = :80"; -1 for none.
func sourcePort(filter []string) (int, error) {
	if len(filter) == 0 {
		return -1, nil
	}
	text := strings.Join(filter, " ")
	words := strings.Fields(text)
	if len(words) == 3 && words[0] == "sport" && (words[1] == "=" || words[1] == "==" || words[1] == "eq") {
		if port, err := strconv.ParseUint(strings.TrimPrefix(words[2], ":"), 10, 16); err == nil {
			return int(port), nil
		}
	}
	return 0, unknown(SS, 255, text)
}

func readSockets(file, netid string) ([]socket, error) {
	f, err := os.Open(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []socket
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.Contains(fields[1], ":") {
			continue // the headings
		}
		local, errLocal := parseAddress(fields[1])
		peer, errPeer := parseAddress(fields[2])
		if errLocal != nil || errPeer != nil {
			continue
		}
		found = append(found, socket{netid, stateName(fields[3], netid), local, peer})
	}
	return found, lines.Err()
}

// stateName is the state of a socket by the kernel's number (include/net/tcp_states.h).
func stateName(number, netid string) string {
	n, err := strconv.ParseUint(number, 16, 8)
	names := []string{"", "ESTAB", "SYN-SENT", "SYN-RECV", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "UNCONN", "CLOSE-WAIT", "LAST-ACK", "LISTEN", "CLOSING"}
	switch {
	case err != nil || int(n) >= len(names) || n == 0:
		return "UNKNOWN"
	case netid == "udp" && names[n] != "ESTAB":
		return "UNCONN"
	}
	return names[n]
}

// parseAddress reads "0100007F:1F90": the bytes of each word in the machine's order.
func parseAddress(text string) (netip.AddrPort, error) {
	host, portText, _ := strings.Cut(text, ":")
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	for i := 0; i < len(raw); i += 4 { // little-endian, as the processors that sandboxes run on
		raw[i], raw[i+1], raw[i+2], raw[i+3] = raw[i+3], raw[i+2], raw[i+1], raw[i]
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}

// address is how ss writes one.
func address(a netip.AddrPort) string {
	port := "*"
	if a.Port() != 0 {
		port = strconv.Itoa(int(a.Port()))
	}
	return net.JoinHostPort(a.Addr().String(), port)
}
