// As call.c, through cgo, and an error. docs/package-callers.md names it.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/include
#cgo LDFLAGS: -lsmall -lm -lpthread
#include <stdlib.h>
#include "small.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

func check(code C.int) error {
	if code == C.SMELT_OK {
		return nil
	}
	return errors.New(C.GoString(C.small_last_error()))
}

// A tensor in C's memory, as cgo asks for. Its data is a slice of Go's until free is called.
func tensor[T any](info *C.smelt_tensor_info, shape ...int64) (C.DLTensor, []T) {
	count := int64(1)
	extents := unsafe.Slice((*int64)(C.malloc(C.size_t(8*len(shape)+8))), len(shape)+1)
	for d, extent := range shape {
		extents[d] = extent
		count *= extent
	}
	var element T
	data := C.calloc(C.size_t(count+1), C.size_t(unsafe.Sizeof(element)))
	made := C.DLTensor{data: data, ndim: info.rank, dtype: info.dtype, shape: (*C.int64_t)(&extents[0])}
	made.device.device_type = C.kDLCPU
	return made, unsafe.Slice((*T)(data), count)
}

func free(tensors ...C.DLTensor) {
	for _, each := range tensors {
		C.free(each.data)
		C.free(unsafe.Pointer(each.shape))
	}
}

func run(weights, path string) error {
	runtime.LockOSThread() // the message of an error is the thread's
	defer runtime.UnlockOSThread()
	name := C.CString(weights)
	defer C.free(unsafe.Pointer(name))
	var model *C.small
	if err := check(C.small_create(name, nil, &model)); err != nil {
		return err
	}
	defer C.small_destroy(model)

	ofX, x := tensor[float32](C.small_input(0), 5, 3)
	ofIndex, index := tensor[int64](C.small_input(1), 5)
	ofCache, cache := tensor[float32](C.small_input(2), 5, 2)
	ofSteps, steps := tensor[int64](C.small_input(3))
	ofY, y := tensor[float32](C.small_output(0), 5, 3)
	ofFlags, flags := tensor[bool](C.small_output(1), 10)
	defer free(ofX, ofIndex, ofCache, ofSteps, ofY, ofFlags)
	for i := range x {
		x[i] = float32(float32(i)*0.37) - 2
	}
	for i := range index {
		index[i] = int64(i * i)
	}
	if err := check(C.small_initial(model, 3, ofSteps.data)); err != nil {
		return err
	}

	inputs := []C.DLTensor{ofX, ofIndex, ofCache, ofSteps}
	outputs := []C.DLTensor{ofY, ofFlags}
	var sizes [1]C.int64_t
	if err := check(C.small_sizes(&inputs[0], &sizes[0])); err != nil {
		return err
	}
	bytes := C.small_workspace_bytes(model, &sizes[0])
	workspace := C.aligned_alloc(C.SMELT_ALIGNMENT, C.size_t(bytes)/64*64+64)
	defer C.free(workspace)
	for i := 0; i < 2; i++ {
		if err := check(C.small_run(model, &inputs[0], &outputs[0], workspace, C.size_t(bytes))); err != nil {
			return err
		}
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, values := range []any{y, flags, cache, steps} {
		if err := binary.Write(file, binary.LittleEndian, values); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := run("/nowhere", ""); err == nil {
		panic("no error")
	}
}
