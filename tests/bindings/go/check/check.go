// Package check is what the programs of this folder share.
package check

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"libddp.org/ddp"
)

// That ends the process unless a fact holds.
func That(holds bool, format string, values ...any) {
	if !holds {
		panic(fmt.Sprintf(format, values...))
	}
}

// OK ends the process if a call has failed.
func OK(err error) {
	if err != nil {
		panic(err)
	}
}

// Get is the result of a call, which ends the process if it has failed.
func Get[T any](value T, err error) T {
	OK(err)
	return value
}

// Fails checks that a call has failed with this status, and that the message has these words.
func Fails(err error, status ddp.Status, words ...string) *ddp.Error {
	That(errors.Is(err, status), "a call should fail with %v, not with %v", status, err)
	for _, word := range words {
		That(strings.Contains(err.Error(), word), "no '%s' in: %v", word, err)
	}
	own := (*ddp.Error)(nil)
	That(errors.As(err, &own), "%T", err)
	return own
}

// Near checks numbers within rounding.
func Near(found, expected []float32) {
	That(len(found) == len(expected), "%d elements, expected %d", len(found), len(expected))
	for i := range found {
		That(math.Abs(float64(found[i]-expected[i])) <= 1e-6*math.Max(1, math.Abs(float64(expected[i]))), "element %d: %v, expected %v", i,
			found[i], expected[i])
	}
}

// ValuesOf are the numbers that a rank gives: whole ones, which add without rounding.
func ValuesOf(rank, size int) []float32 {
	values := make([]float32, size)
	for i := range values {
		values[i] = float32((7*i + 13*rank) % 32)
	}
	return values
}

// Sums are those of all ranks, each divided.
func Sums(world, size int, divisor float32) []float32 {
	sums := make([]float32, size)
	for rank := 0; rank < world; rank++ {
		for i, value := range ValuesOf(rank, size) {
			sums[i] += value
		}
	}
	for i := range sums {
		sums[i] /= divisor
	}
	return sums
}

// Run runs tests by name.
func Run(name string, test func()) {
	fmt.Fprintln(os.Stderr, "test", name)
	test()
}
