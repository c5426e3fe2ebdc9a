package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
// #include <stdlib.h>
import "C"

import (
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// StoreOptions are ddp_store_options.
type StoreOptions struct {
	IsServer bool          // this process also runs the server (tcp only)
	Timeout  time.Duration // of opening, and by default of each later wait; 0: 300 s
	Secret   string        // "": from the environment
	Insecure bool          // meet at any address without a secret
}

// Store is the store in which ranks meet, for a program's own keys. Several goroutines may use it at once.
type Store struct {
	handle
	raw    *C.ddp_store
	groups atomic.Int32 // that were made with it
}

func newStore(raw *C.ddp_store) *Store {
	return &Store{handle: handle{name: "the store"}, raw: raw}
}

// OpenStore opens a store: "tcp://host:port", "file:///path" or "etcd://host:port/name". options may be nil.
func OpenStore(uri string, options *StoreOptions) (*Store, error) {
	if options == nil {
		options = &StoreOptions{}
	}
	var given C.ddp_store_options
	C.ddp_store_options_init_sized(&given, C.sizeof_ddp_store_options)
	given.uri, given.secret = C.CString(uri), optional(options.Secret)
	defer free(given.uri, given.secret)
	given.is_server, given.timeout_ms = truth(options.IsServer), milliseconds(options.Timeout)
	if options.Insecure {
		given.flags = C.DDP_STORE_INSECURE
	}
	var raw *C.ddp_store
	var failure *C.ddp_error
	if err := errorOf(C.ddp_store_create(&given, &raw, &failure), failure); err != nil {
		return nil, err
	}
	return newStore(raw), nil
}

// Close closes the connection, and the server if this is its handle. It fails while a group that was made with the store is open.
func (s *Store) Close() error {
	if s.groups.Load() > 0 {
		return &Error{InvalidState, "the store has open groups: close them first", -1, -1, -1, -1}
	}
	s.end(func() { C.ddp_store_free(s.raw) })
	return nil
}

// Pointer is the ddp_store* of C, valid until Close.
func (s *Store) Pointer() unsafe.Pointer { return unsafe.Pointer(s.raw) }

// Port is the TCP port of the server; -1 for other stores.
func (s *Store) Port() int {
	if s.enter() != nil {
		return -1
	}
	defer s.leave()
	return int(C.ddp_store_port(s.raw))
}

func (s *Store) call(key string, function func(*C.char, **C.ddp_error) C.ddp_status) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if strings.IndexByte(key, 0) >= 0 {
		return wrong("key has a NUL in it")
	}
	given := C.CString(key)
	defer free(given)
	var failure *C.ddp_error
	return errorOf(function(given, &failure), failure)
}

// Set sets a key.
func (s *Store) Set(key string, value []byte) error {
	return s.call(key, func(k *C.char, e **C.ddp_error) C.ddp_status {
		return C.ddp_store_set(s.raw, k, pointer(value), C.size_t(len(value)), e)
	})
}

// Get waits until the key exists, and returns its value. wait 0: the store's timeout.
func (s *Store) Get(key string, wait time.Duration) (value []byte, err error) {
	var data unsafe.Pointer
	var size C.size_t
	err = s.call(key, func(k *C.char, e **C.ddp_error) C.ddp_status {
		return C.ddp_store_get(s.raw, k, milliseconds(wait), &data, &size, e)
	})
	if err != nil {
		return nil, err
	}
	return bytesOf(data, size), nil
}

// Wait waits until all keys exist. wait 0: the store's timeout.
func (s *Store) Wait(wait time.Duration, keys ...string) error {
	return s.callKeys(keys, func(k **C.char, count C.size_t, e **C.ddp_error) C.ddp_status {
		return C.ddp_store_wait(s.raw, k, count, milliseconds(wait), e)
	})
}

// Check says whether all keys exist now.
func (s *Store) Check(keys ...string) (bool, error) {
	var exists C.int32_t
	err := s.callKeys(keys, func(k **C.char, count C.size_t, e **C.ddp_error) C.ddp_status {
		return C.ddp_store_check(s.raw, k, count, &exists, e)
	})
	return exists != 0, err
}

func (s *Store) callKeys(keys []string, function func(**C.char, C.size_t, **C.ddp_error) C.ddp_status) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	list := C.calloc(C.size_t(len(keys)+1), C.size_t(unsafe.Sizeof(uintptr(0))))
	defer C.free(list)
	texts := unsafe.Slice((**C.char)(list), len(keys)+1)
	for i, key := range keys {
		texts[i] = C.CString(key)
		defer free(texts[i])
	}
	var failure *C.ddp_error
	return errorOf(function((**C.char)(list), C.size_t(len(keys)), &failure), failure)
}

// Delete deletes a key, and says whether it existed.
func (s *Store) Delete(key string) (existed bool, err error) {
	var deleted C.int32_t
	err = s.call(key, func(k *C.char, e **C.ddp_error) C.ddp_status { return C.ddp_store_delete(s.raw, k, &deleted, e) })
	return deleted != 0, err
}

// Add adds to the decimal integer under a key, and returns the sum. A missing key counts as 0.
func (s *Store) Add(key string, amount int64) (int64, error) {
	var sum C.int64_t
	err := s.call(key, func(k *C.char, e **C.ddp_error) C.ddp_status {
		return C.ddp_store_add(s.raw, k, C.int64_t(amount), &sum, e)
	})
	return int64(sum), err
}

// Keys are the keys that begin with prefix, sorted.
func (s *Store) Keys(prefix string) ([]string, error) {
	var data unsafe.Pointer
	var size C.size_t
	err := s.call(prefix, func(k *C.char, e **C.ddp_error) C.ddp_status { return C.ddp_store_list_keys(s.raw, k, &data, &size, e) })
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(bytesOf(data, size)), func(r rune) bool { return r == 0 }), nil
}

// CompareSet sets a key to desired if its value is expected, or if it is missing and expected is empty. It returns the value that the key
// then has.
func (s *Store) CompareSet(key string, expected, desired []byte) ([]byte, error) {
	var data unsafe.Pointer
	var size C.size_t
	err := s.call(key, func(k *C.char, e **C.ddp_error) C.ddp_status {
		return C.ddp_store_compare_set(s.raw, k, pointer(expected), C.size_t(len(expected)), pointer(desired), C.size_t(len(desired)), &data,
			&size, e)
	})
	if err != nil {
		return nil, err
	}
	return bytesOf(data, size), nil
}
