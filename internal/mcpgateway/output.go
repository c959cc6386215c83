package mcpgateway

import (
	"os"
	"sync"
)

// maxLog is how long a log file gets before it begins anew, bytes.
const maxLog = 4 << 20

// LogFile is a file of lines that never gets long: when it is full, it begins
// anew. It is safe for concurrent use.
type LogFile struct {
	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLog opens the file, for root only, and goes on at its end.
func OpenLog(path string) (*LogFile, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &LogFile{file: file, size: info.Size()}, nil
}

// Write never fails: who logs has nobody to tell.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > maxLog && l.file.Truncate(0) == nil {
		l.size = 0
	}
	l.file.Write(p)
	l.size += int64(len(p))
	return len(p), nil
}
