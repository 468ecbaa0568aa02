/* Calls into the CUDA driver, with everything prepared that an operation does not change. */

#include "helper.h"

#include <stddef.h>
#include <string.h>

/* Which parameters of the kernels an operation sets (VARYING in tracer/digest/kernels.py). */
enum { IDS = 1, STEP = 2, DIGESTS = 5 };

/* Enqueue an operation's digests and record the events behind them; return the driver's code, and which call. */
int enqueue(Way *way, const Work *work, const char **call)
{
    const Driver *driver = way->driver;
    int code = 0;
    *call = "cuStreamWaitEvent";
    if (way->beside)
        code = driver->wait(work->stream, way->during ? work->begin : work->end, 0);
    for (Py_ssize_t i = 0; !code && i < Py_SIZE(way); i++) {
        Launch *launch = &way->launches[i];
        launch->config.stream = work->stream;
        launch->values[IDS] = work->ids + work->step * 8 * way->start;
        launch->values[STEP] = work->step * way->unit;
        launch->values[DIGESTS] = work->slot + launch->offset;
        *call = "cuLaunchKernelEx";
        void *function = (void *)(uintptr_t)launch->function;
        code = driver->launch(&launch->config, function, launch->pointers, NULL);
    }
    if (!code && way->during) {
        *call = "cuStreamWaitEvent";
        code = driver->wait(work->stream, work->end, 0);
    }
    if (code)
        return code;
    *call = "cuEventRecord";
    if (work->own)
        code = driver->record(work->own, work->stream);
    return code ? code : driver->record(work->end, work->stream);
}

static PyObject *driver_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long wait, record, launch, capturing;
    static char *names[] = {"wait", "record", "launch", "capturing", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKKK", names, &wait, &record, &launch, &capturing))
        return NULL;
    Driver *self = (Driver *)type->tp_alloc(type, 0);
    if (self) {
        self->wait = (int (*)(uint64_t, uint64_t, unsigned))(uintptr_t)wait;
        self->record = (int (*)(uint64_t, uint64_t))(uintptr_t)record;
        self->launch = (int (*)(void *, void *, void **, void *))(uintptr_t)launch;
        self->capturing = (int (*)(uint64_t, int *))(uintptr_t)capturing;
    }
    return (PyObject *)self;
}

/* Fill a block from (function, its configuration and parameters as bytes, offset). */
static int fill(Launch *launch, PyObject *given)
{
    unsigned long long function;
    long long offset;
    Py_buffer bytes;
    if (!PyArg_ParseTuple(given, "Ky*L", &function, &bytes, &offset))
        return -1;
    Py_ssize_t size = bytes.len - (Py_ssize_t)sizeof launch->config;
    int fits = size > DIGESTS * 8 && size <= (Py_ssize_t)sizeof launch->values;
    if (fits) {
        launch->function = function;
        launch->offset = offset;
        memcpy(&launch->config, bytes.buf, sizeof launch->config);
        memcpy(launch->values, (char *)bytes.buf + sizeof launch->config, (size_t)size);
        for (int i = 0; i < MOST_PARAMETERS; i++)
            launch->pointers[i] = &launch->values[i];
    }
    else
        PyErr_Format(PyExc_ValueError, "a launch of %zd bytes: expected at most %d parameters",
                     bytes.len, MOST_PARAMETERS);
    PyBuffer_Release(&bytes);
    return fits ? 0 : -1;
}

static PyObject *way_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *driver, *launches;
    long long start, unit, words;
    int beside, during;
    static char *names[] = {"driver", "start", "unit", "words", "beside", "during", "launches", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!LLLppO!", names, &Driver_Type, &driver, &start,
                                     &unit, &words, &beside, &during, &PyTuple_Type, &launches))
        return NULL;
    Way *self = (Way *)type->tp_alloc(type, PyTuple_GET_SIZE(launches));
    if (!self)
        return NULL;
    self->driver = (Driver *)Py_NewRef(driver);
    self->start = start, self->unit = unit, self->words = words;
    self->beside = beside, self->during = during;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++)
        if (fill(&self->launches[i], PyTuple_GET_ITEM(launches, i))) {
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static void way_dealloc(PyObject *self)
{
    Py_XDECREF(((Way *)self)->driver);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject Driver_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hicache_dbg_native.Driver",
    .tp_doc = "Functions of the CUDA driver, by their addresses.",
    .tp_basicsize = sizeof(Driver),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = driver_new,
};

PyTypeObject Way_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hicache_dbg_native.Way",
    .tp_doc = "How to digest a number of indices in one launch a component.",
    .tp_basicsize = offsetof(Way, launches),
    .tp_itemsize = sizeof(Launch),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = way_new,
    .tp_dealloc = way_dealloc,
};
