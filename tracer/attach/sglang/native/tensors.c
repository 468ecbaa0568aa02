/* What torch says of a tensor, in one call: DLPack's exchange API, which torch has from 2.10 on.
 *
 * Asking by attributes takes a call for each, and 2 us on a thread that has just done other things.
 */

#include "helper.h"

#include <stddef.h>

/* DLTensor, and DLPackExchangeAPI of DLPack 1.3 as far as it is used (dlpack.h); a newer minor version is the same. */
typedef struct {
    void *data;
    int32_t kind, device, dims;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t offset;
} Borrowed;
typedef struct {
    uint32_t major, minor;
    void *previous;
    void *allocate, *take, *give;
    int (*borrow)(void *tensor, Borrowed *borrowed);
} Exchange;
enum { MAJOR = 1, CPU = 1, CUDA = 2, SIGNED = 0 };

/* Check that tensors can be asked about. */
int find_exchange(PyObject *capsule)
{
    const Exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!exchange)
        return -1;
    if (exchange->major != MAJOR)
        PyErr_Format(PyExc_ImportError, "torch has version %u.%u of DLPack: expected %d", exchange->major,
                     exchange->minor, MAJOR);
    return exchange->major == MAJOR ? 0 : -1;
}

/* Ask torch about a tensor; returns 0 if it is of another class. */
int ask(Calls *calls, PyObject *object, Tensor *tensor)
{
    if ((PyObject *)Py_TYPE(object) != HAS(Tensor))
        return 0;
    const Exchange *exchange = PyCapsule_GetPointer(HAS(exchange), "dlpack_exchange_api");
    Borrowed is;
    if (!exchange || exchange->borrow(object, &is))
        return -1;
    tensor->count = 1;
    for (int32_t i = 0; i < is.dims; i++)
        tensor->count *= is.shape[i];
    tensor->device = is.kind == CUDA ? is.device : is.kind == CPU ? -1 : -2;
    tensor->is_row = is.dims == 1 && is.dtype.code == SIGNED && is.dtype.bits == 64 && is.dtype.lanes == 1;
    tensor->address = (int64_t)(intptr_t)is.data + (int64_t)is.offset;
    tensor->step = tensor->is_row ? is.strides[0] : 0;
    return 1;
}
