package main

import (
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// The numbers at the beginning of IDX files, in which MNIST is published.
const (
	labelsMagic = 0x00000801
	imagesMagic = 0x00000803
)

// digits are images as rows of numbers from 0 (paper) to 1 (ink), and which digit each shows.
type digits struct {
	images []float32
	labels []int
}

// content is a file's, plain or compressed.
func content(path string) ([]byte, error) {
	if plain, err := os.ReadFile(path); err == nil {
		return plain, nil
	}
	file, err := os.Open(path + ".gz")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(unpacked)
}

// readIDX gives the number of things in an IDX file, and its bytes.
func readIDX(path string, magic uint32) (int, []byte, error) {
	bytes, err := content(path)
	if err != nil {
		return 0, nil, err
	}
	start := 4 + 4*int(magic&0xff)
	if len(bytes) < start || binary.BigEndian.Uint32(bytes) != magic {
		return 0, nil, fmt.Errorf("%s is not the IDX file that it should be", path)
	}
	size, count := 1, int(binary.BigEndian.Uint32(bytes[4:]))
	for at := 4; at < start; at += 4 {
		size *= int(binary.BigEndian.Uint32(bytes[at:]))
	}
	if len(bytes) != start+size {
		return 0, nil, fmt.Errorf("%s is cut short", path)
	}
	return count, bytes[start:], nil
}

// load reads the digits called "train" or "t10k".
func load(folder, name string) (*digits, error) {
	count, images, err := readIDX(filepath.Join(folder, name+"-images-idx3-ubyte"), imagesMagic)
	if err != nil {
		return nil, err
	}
	_, labels, err := readIDX(filepath.Join(folder, name+"-labels-idx1-ubyte"), labelsMagic)
	if err != nil {
		return nil, err
	}
	if len(labels) != count {
		return nil, fmt.Errorf("%s: %d images, but %d labels", name, count, len(labels))
	}
	loaded := &digits{images: make([]float32, len(images)), labels: make([]int, count)}
	for i, ink := range images {
		loaded.images[i] = float32(ink) / 255
	}
	for i, label := range labels {
		loaded.labels[i] = int(label)
	}
	return loaded, nil
}
