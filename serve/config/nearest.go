package config

import "strings"

// maxNearest bounds the words that Nearest compares: a longer one is no
// mistyped name.
const maxNearest = 64

// Nearest is the candidate that given is most likely a mistyping of, or "":
// at most one mistake for each three letters, a swapped pair being one.
func Nearest(given string, candidates []string) string {
	if len(given) > maxNearest {
		return ""
	}
	given = strings.ToLower(given)
	best, limit := "", max(1, len(given)/3)+1
	for _, c := range candidates {
		if len(c) > maxNearest {
			continue
		}
		if d := distance(given, strings.ToLower(c)); d < limit {
			best, limit = c, d
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
