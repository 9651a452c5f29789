// Between Go and C: errors, memory that options point to, functions that C calls, handles that are freed once.

package orrery

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#cgo LDFLAGS: -lorrery
#include <stdlib.h>
#include <orrery_lab.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/cgo"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// Status is orrery_status; errors.Is(err, orrery.StatusBusy) asks whether a call failed with it.
type Status int32

func (s Status) Error() string { return C.GoString(C.orrery_status_name(C.orrery_status(s))) }

// Error is what a call failed with; the fields are those of orrery_error.
type Error struct {
	Status                         Status
	Message                        string
	NativeCode                     int64
	BytesRequested, BytesAvailable uint64
	Offset                         uint64
	Line, Column                   uint32
	Option                         string // the field of the options that is at fault; "": none
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Status.Error()) }

// Is makes errors.Is compare statuses.
func (e *Error) Is(target error) bool { return target == error(e.Status) }

// Unwrap is the system's own error, if it had one: errors.Is(err, os.ErrNotExist) asks whether a file was missing.
func (e *Error) Unwrap() error {
	if e.Status == StatusIo && e.NativeCode > 0 {
		return syscall.Errno(e.NativeCode)
	}
	return nil
}

// ErrClosed is returned by the methods of a handle that has been closed.
var ErrClosed = errors.New("orrery: the handle is closed")

var errNul = &Error{Status: StatusInvalidArgument, Message: "a NUL in a string"}

func checkSize(library uint32, here uintptr) {
	if uintptr(library) != here {
		panic(fmt.Sprintf("orrery: the library has a struct of %d bytes, %d here", library, here))
	}
}

// checkABI comes before anything else: the library that was loaded is the one that this package knows.
func checkABI() error {
	if v := AbiVersion(); v != abiVersion {
		return &Error{Status: StatusUnsupported, Message: fmt.Sprintf("the library has ABI %d, this package wants %d", v, abiVersion)}
	}
	return nil
}

func call(f func(e *C.orrery_error) C.orrery_status) error {
	e := new(C.orrery_error)
	C.orrery_error_init(e, C.sizeof_orrery_error)
	checkSize(uint32(e.struct_size), C.sizeof_orrery_error)
	status := f(e)
	if status == C.ORRERY_OK {
		return nil
	}
	return &Error{Status(status), C.GoString(&e.message[0]), int64(e.native_code), uint64(e.bytes_requested),
		uint64(e.bytes_available), uint64(e.offset), uint32(e.line), uint32(e.column), C.GoString(&e.option[0])}
}

// planRegion is what sized may fill besides bytes and numbers; cgo wants a name of Go's in a constraint.
type planRegion = C.orrery_plan_region

// sized calls a function of the header's "Sizes out" kind: for the size, then for the content.
func sized[T byte | int32 | uint32 | planRegion](f func(to *T, capacity C.size_t, n *C.size_t, e *C.orrery_error) C.orrery_status) ([]T, error) {
	n := new(C.size_t)
	if err := call(func(e *C.orrery_error) C.orrery_status { return f(nil, 0, n, e) }); err != nil {
		return nil, err
	}
	for {
		capacity := *n
		buffer := make([]T, capacity+1)
		if region, ok := any(&buffer[0]).(*planRegion); ok {
			C.orrery_plan_region_init(region, C.sizeof_orrery_plan_region)
		}
		err := call(func(e *C.orrery_error) C.orrery_status { return f(&buffer[0], capacity, n, e) })
		if errors.Is(err, StatusInvalidArgument) && *n > capacity {
			continue // longer meanwhile
		}
		if err != nil {
			return nil, err
		}
		return buffer[:*n], nil
	}
}

func text(b []byte, err error) (string, error) { return string(b), err }

// keep owns what options point to, in C's memory; callbacks live longer than that, with a runtime or a generation.
type keep struct {
	pointers  []unsafe.Pointer
	callbacks *callbacks
	held      []*handle
	err       error
}

func newKeep() *keep { return &keep{callbacks: &callbacks{}} }

func (k *keep) alloc(bytes int) unsafe.Pointer {
	p := C.calloc(1, C.size_t(bytes))
	k.pointers = append(k.pointers, p)
	return p
}

func (k *keep) str(s string) unsafe.Pointer {
	if strings.IndexByte(s, 0) >= 0 {
		k.err = errNul
	}
	p := unsafe.Pointer(C.CString(s))
	k.pointers = append(k.pointers, p)
	return p
}

func (k *keep) chars(s string) *C.char { return (*C.char)(k.str(s)) }

// texts are pointers to C strings; nil for none.
func (k *keep) texts(texts []string) **C.char {
	if len(texts) == 0 {
		return nil
	}
	p := k.alloc(len(texts) * int(unsafe.Sizeof((*C.char)(nil))))
	for i, text := range texts {
		unsafe.Slice((**C.char)(p), len(texts))[i] = k.chars(text)
	}
	return (**C.char)(p)
}

// hold is a handle's pointer, which stays valid until free(); nil of a closed one.
func (k *keep) hold(h *handle) unsafe.Pointer {
	if err := h.enter(); err != nil {
		k.err = err
		return nil
	}
	k.held = append(k.held, h)
	return h.p
}

// uses are adapters and their scales, which stay open until free().
func (k *keep) uses(adapters []AdapterUse) *C.orrery_adapter_use {
	uses := (*C.orrery_adapter_use)(k.alloc((len(adapters) + 1) * C.sizeof_orrery_adapter_use))
	at := unsafe.Slice(uses, len(adapters))
	for i, use := range adapters {
		at[i].adapter, at[i].scale = (*C.orrery_adapter)(k.hold(use.Adapter.handle)), C.float(use.Scale)
	}
	return uses
}

func (k *keep) source(path string) *C.orrery_source {
	p := (*C.orrery_source)(k.alloc(C.sizeof_orrery_source))
	C.orrery_source_init(p, C.sizeof_orrery_source)
	p.path = k.chars(path)
	return p
}

func (k *keep) free() {
	for _, p := range k.pointers {
		C.free(p)
	}
	for _, h := range k.held {
		h.leave()
	}
}

// callbacks are functions that C calls. A panic does not cross C: it ends the call there, and goes on behind it.
type callbacks struct {
	cells    []unsafe.Pointer // C memory that holds a cgo.Handle
	mu       sync.Mutex
	panicked any
}

type callback struct {
	function any
	owner    *callbacks
}

func (k *keep) callback(function any) unsafe.Pointer { return k.callbacks.add(function) }

func (c *callbacks) add(function any) unsafe.Pointer {
	cell := C.malloc(C.size_t(unsafe.Sizeof(uintptr(0))))
	*(*uintptr)(cell) = uintptr(cgo.NewHandle(&callback{function, nil}))
	(cgo.Handle(*(*uintptr)(cell))).Value().(*callback).owner = c
	c.cells = append(c.cells, cell)
	return cell
}

func (c *callbacks) release() {
	for _, cell := range c.cells {
		cgo.Handle(*(*uintptr)(cell)).Delete()
		C.free(cell)
	}
	c.cells = nil
}

// call is call(), and behind it what a callback panicked with.
func (c *callbacks) call(f func(e *C.orrery_error) C.orrery_status) error {
	err := call(f)
	c.mu.Lock()
	panicked := c.panicked
	c.panicked = nil
	c.mu.Unlock()
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// enter runs f on what C hands back as `user`; 1 cancels.
func enter(user unsafe.Pointer, f func(function any) bool) (result C.int32_t) {
	c := cgo.Handle(*(*uintptr)(user)).Value().(*callback)
	defer func() {
		if r := recover(); r != nil {
			c.owner.mu.Lock()
			if c.owner.panicked == nil {
				c.owner.panicked = r
			}
			c.owner.mu.Unlock()
			result = 1
		}
	}()
	if f(c.function) {
		return 0
	}
	return 1
}

//export goOrreryLog
func goOrreryLog(user unsafe.Pointer, level C.int32_t, message *C.char) {
	enter(user, func(f any) bool { f.(func(LogLevel, string))(LogLevel(level), C.GoString(message)); return true })
}

//export goOrreryProgress
func goOrreryProgress(user unsafe.Pointer, done, total C.uint64_t) C.int32_t {
	return enter(user, func(f any) bool { return f.(func(uint64, uint64) bool)(uint64(done), uint64(total)) })
}

//export goOrreryLogits
func goOrreryLogits(user unsafe.Pointer, logits *C.float, nVocab C.size_t, tokens *C.int32_t, n C.size_t) C.int32_t {
	return enter(user, func(f any) bool {
		row, ids := unsafe.Slice((*float32)(logits), nVocab), unsafe.Slice((*int32)(tokens), n)
		return f.(func([]float32, []int32) bool)(row, ids)
	})
}

//export goOrreryEvent
func goOrreryEvent(user unsafe.Pointer, event *C.orrery_event) C.int32_t {
	return enter(user, func(f any) bool { return f.(func(Event) bool)(toEvent(event)) })
}

// handle is a handle of the library: freed once, and not while a call uses it, whichever goroutine closes it. A collected one
// is freed as well.
type handle struct {
	mu     sync.Mutex
	p      unsafe.Pointer
	calls  int
	closed bool
	free   func(p unsafe.Pointer)
}

func newHandle(p unsafe.Pointer, free func(p unsafe.Pointer)) *handle {
	h := &handle{p: p, free: free}
	runtime.SetFinalizer(h, func(h *handle) { h.Close() })
	return h
}

// Close frees the handle; calls that use it just now finish first. Closing again does nothing. It returns nil.
func (h *handle) Close() error {
	h.mu.Lock()
	free := !h.closed && h.calls == 0
	h.closed = true
	h.mu.Unlock()
	if free {
		h.free(h.p)
	}
	return nil
}

// use runs f with the pointer, which stays valid inside.
func (h *handle) use(f func(p unsafe.Pointer) error) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.leave()
	return f(h.p)
}

func (h *handle) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.calls++
	return nil
}

func (h *handle) leave() {
	h.mu.Lock()
	h.calls--
	free := h.closed && h.calls == 0
	h.mu.Unlock()
	if free {
		h.free(h.p)
	}
}

// call is use() and call() in one.
func (h *handle) call(f func(p unsafe.Pointer, e *C.orrery_error) C.orrery_status) error {
	return h.use(func(p unsafe.Pointer) error {
		return call(func(e *C.orrery_error) C.orrery_status { return f(p, e) })
	})
}

// sizedOf is use() and sized() in one.
func sizedOf[T byte | int32 | uint32](h *handle, f func(p unsafe.Pointer, to *T, capacity C.size_t, n *C.size_t, e *C.orrery_error) C.orrery_status) (out []T, err error) {
	err = h.use(func(p unsafe.Pointer) error {
		out, err = sized(func(to *T, capacity C.size_t, n *C.size_t, e *C.orrery_error) C.orrery_status {
			return f(p, to, capacity, n, e)
		})
		return err
	})
	return out, err
}

// first points to the first of a slice; nil for an empty one.
func first[T any](items []T) unsafe.Pointer {
	if len(items) == 0 {
		return nil
	}
	return unsafe.Pointer(&items[0])
}
