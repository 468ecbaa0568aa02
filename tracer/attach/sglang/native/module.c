/* The wrappers' type, and the module. It serves the main interpreter, and relies on the GIL. */

#include "helper.h"

#include <stddef.h>
#include <string.h>

/* The kinds of wrappers. */
static const struct {
    const char *name;
    vectorcallfunc call;
} kinds[] = {{"copy", copy}, {"operation", operation}, {"queue", queue}, {"production", production}};

static vectorcallfunc kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(name, kinds[i].name))
            return kinds[i].call;
    PyErr_Format(PyExc_ValueError, "no kind of wrapper: %s", name);
    return NULL;
}

static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const char *kind;
    PyObject *calls, *original, *python, *name, *events = NULL, *waiting = NULL, *nodes = NULL;
    int loads = 0;
    static char *names[] = {"kind",  "calls",  "original", "python", "name",
                            "loads", "events", "queue",    "nodes",  NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!OOU|pOUO!", names, &kind, &Calls_Type, &calls,
                                     &original, &python, &name, &loads, &events, &waiting, &PyDict_Type,
                                     &nodes))
        return NULL;
    vectorcallfunc call = kind_of(kind);
    Wrapper *self = call ? (Wrapper *)type->tp_alloc(type, 0) : NULL;
    if (!self)
        return NULL;
    self->call = call;
    self->calls = (Calls *)Py_NewRef(calls);
    self->original = Py_NewRef(original);
    self->python = Py_NewRef(python);
    self->name = Py_NewRef(name);
    self->events = Py_XNewRef(events);
    self->queue = Py_XNewRef(waiting);
    self->nodes = Py_XNewRef(nodes);
    self->loads = loads;
    return (PyObject *)self;
}

static int wrapper_traverse(PyObject *object, visitproc visit, void *arg)
{
    Wrapper *self = (Wrapper *)object;
    Py_VISIT(self->dict);
    Py_VISIT(self->calls);
    Py_VISIT(self->original);
    Py_VISIT(self->python);
    Py_VISIT(self->events);
    Py_VISIT(self->nodes);
    return 0;
}

/* What a call needs stays: it may still come, from a finalizer in the same garbage. */
static int wrapper_clear(PyObject *self)
{
    Py_CLEAR(((Wrapper *)self)->dict);
    return 0;
}

static void wrapper_dealloc(PyObject *object)
{
    Wrapper *self = (Wrapper *)object;
    PyObject_GC_UnTrack(object);
    if (self->weak)
        PyObject_ClearWeakRefs(object);
    Py_CLEAR(self->dict);
    Py_CLEAR(self->calls);
    Py_CLEAR(self->original);
    Py_CLEAR(self->python);
    Py_CLEAR(self->name);
    Py_CLEAR(self->events);
    Py_CLEAR(self->queue);
    Py_CLEAR(self->nodes);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *wrapper_get(PyObject *self, PyObject *owner, PyObject *Py_UNUSED(cls))
{
    return owner && owner != Py_None ? PyMethod_New(self, owner) : Py_NewRef(self);
}

/* Copied and pickled by its name, as a function is. */
static PyObject *wrapper_reduce(PyObject *self, PyObject *Py_UNUSED(none))
{
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyMethodDef wrapper_methods[] = {
    {"__reduce__", wrapper_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef wrapper_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* A method descriptor, so that pool.method(...) creates no bound method. */
PyTypeObject Wrapper_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hicache_dbg_native.Wrapper",
    .tp_doc = "Replaces a method of SGLang's; its kind says what the method is.",
    .tp_basicsize = sizeof(Wrapper),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = wrapper_new,
    .tp_dealloc = wrapper_dealloc,
    .tp_traverse = wrapper_traverse,
    .tp_clear = wrapper_clear,
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = wrapper_get,
    .tp_vectorcall_offset = offsetof(Wrapper, call),
    .tp_dictoffset = offsetof(Wrapper, dict),
    .tp_weaklistoffset = offsetof(Wrapper, weak),
    .tp_getset = wrapper_getset,
    .tp_methods = wrapper_methods,
};

static int fill(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "it serves the main interpreter only");
        return -1;
    }
    if (intern_names() || PyModule_AddType(module, &Driver_Type) || PyModule_AddType(module, &Way_Type) ||
        PyModule_AddType(module, &Calls_Type) || PyModule_AddType(module, &Wrapper_Type))
        return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)fill},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hicache_dbg_native",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_hicache_dbg_native(void);

PyMODINIT_FUNC PyInit_hicache_dbg_native(void)
{
    return PyModuleDef_Init(&definition);
}
