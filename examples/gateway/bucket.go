// The bucket of a subject (0..9999), as every lanemesh sidecar computes it. A lane owns the buckets start..start+size.
//
// As a program: lines of scheme, salt, experiment, subject, separated by tabs, on the standard input; one bucket a line out.
// Test yours against tests/vectors.json.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
)

// Prefix is one SHA-256 block; compute it once per policy.
func Prefix(salt, experiment string) []byte {
	var head []byte
	for _, part := range []string{salt, experiment} {
		head = binary.BigEndian.AppendUint32(head, uint32(len(part)))
		head = append(head, part...)
	}
	sum := sha256.Sum256(head)
	return append(sum[:], make([]byte, 32)...)
}

// Bucket with an empty prefix is the scheme bare-subject.
func Bucket(prefix []byte, subject string) uint32 {
	hash := sha256.New()
	hash.Write(prefix)
	hash.Write([]byte(subject))
	return binary.BigEndian.Uint32(hash.Sum(nil)) % 10000
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		part := strings.Split(lines.Text(), "\t")
		var prefix []byte
		if part[0] == "prefixed" {
			prefix = Prefix(part[1], part[2])
		}
		fmt.Println(Bucket(prefix, part[3]))
	}
}
