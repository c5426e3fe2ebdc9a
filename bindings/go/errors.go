package ddp

// #include <ddp/ddp.h>
import "C"

// Status is the kind of an error: DDP_ERROR_* of include/ddp/status.h. errors.Is(err, ddp.RankFailed) asks for it.
type Status int32

// docs/errors.md explains each.
const (
	InvalidArgument  Status = C.DDP_ERROR_INVALID_ARGUMENT
	InvalidState     Status = C.DDP_ERROR_INVALID_STATE
	NotFound         Status = C.DDP_ERROR_NOT_FOUND
	AlreadyExists    Status = C.DDP_ERROR_ALREADY_EXISTS
	Unsupported      Status = C.DDP_ERROR_UNSUPPORTED
	OutOfMemory      Status = C.DDP_ERROR_OUT_OF_MEMORY
	Timeout          Status = C.DDP_ERROR_TIMEOUT
	Unavailable      Status = C.DDP_ERROR_UNAVAILABLE
	PermissionDenied Status = C.DDP_ERROR_PERMISSION_DENIED
	RankFailed       Status = C.DDP_ERROR_RANK_FAILED
	Mismatch         Status = C.DDP_ERROR_MISMATCH
	Aborted          Status = C.DDP_ERROR_ABORTED
	MissingGradient  Status = C.DDP_ERROR_MISSING_GRADIENT
	Callback         Status = C.DDP_ERROR_CALLBACK
	IO               Status = C.DDP_ERROR_IO
	Limit            Status = C.DDP_ERROR_LIMIT
	Internal         Status = C.DDP_ERROR_INTERNAL
	UnevenInputs     Status = C.DDP_ERROR_UNEVEN_INPUTS
	Interrupted      Status = C.DDP_ERROR_INTERRUPTED
	Nonfinite        Status = C.DDP_ERROR_NONFINITE
)

// Error is the name of the status.
func (s Status) Error() string { return C.GoString(C.ddp_status_name(C.ddp_status(s))) }

// Error is an error of libddp, with its sentence in Go's words. Numbers that are not known are -1.
type Error struct {
	Status              Status
	Message             string
	Rank, Param, Bucket int
	Step                int64
}

func (e *Error) Error() string { return e.Status.Error() + ": " + e.Message }

// Is says whether target is the error's status.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && status == e.Status
}

// errorOf takes an error object, which it frees, or returns nil for DDP_OK.
func errorOf(status C.ddp_status, failure *C.ddp_error) error {
	if status == C.DDP_OK {
		return nil
	}
	if failure == nil {
		return &Error{Status(status), "no more is known: memory is exhausted", -1, -1, -1, -1}
	}
	defer C.ddp_error_free(failure)
	return &Error{Status(C.ddp_error_code(failure)), inGo(C.GoString(C.ddp_error_message(failure))), int(C.ddp_error_rank(failure)),
		int(C.ddp_error_param(failure)), int(C.ddp_error_bucket(failure)), int64(C.ddp_error_step(failure))}
}
