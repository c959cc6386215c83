package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}}

// parseSize reads a whole number with a unit, in bytes.
func parseSize(text string) (int64, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 32)
		if err != nil || int64(n) > math.MaxInt64/u.bytes {
			break
		}
		return int64(n) * u.bytes, nil
	}
	return 0, fmt.Errorf("%.80q is not a size, such as 512MiB or 2GiB", text)
}

// formatSize writes what parseSize reads, or bytes where no unit divides them.
func formatSize(n int64) string {
	for _, u := range sizeUnits {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
