/* Objects of Python classes that have __slots__, created and written without the interpreter. */

#include "helper.h"

#include <structmember.h>

#define DEFINE(name) PyObject *n_##name;
NAMES(DEFINE)

int intern_names(void)
{
#define INTERN(name) \
    if (!n_##name && !(n_##name = PyUnicode_InternFromString(#name))) \
        return -1;
    NAMES(INTERN)
    return 0;
}

/* Find where the instances of a class keep some of its slots. */
int find_places(PyObject *cls, const char *const *names, Py_ssize_t *places, int count)
{
    for (int i = 0; i < count; i++) {
        PyObject *found = PyObject_GetAttrString(cls, names[i]);
        if (!found)
            return -1;
        int is_slot = Py_IS_TYPE(found, &PyMemberDescr_Type) &&
                      ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
        if (is_slot)
            places[i] = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
        if (!is_slot) {
            PyErr_Format(PyExc_TypeError, "%R has no slot named %s", cls, names[i]);
            return -1;
        }
    }
    return 0;
}

/* Create an object like `pattern`, as its class's __init__ leaves one; the class has slots only. */
PyObject *copy_of(PyObject *pattern)
{
    PyTypeObject *type = Py_TYPE(pattern);
    PyObject *made = type->tp_alloc(type, 0);
    for (PyMemberDef *slot = type->tp_members; made && slot && slot->name; slot++)
        SLOT(made, slot->offset) = Py_XNewRef(SLOT(pattern, slot->offset));
    return made;
}

/* Write a slot; the value is what another function returned, which may have failed. */
int put(PyObject *object, Py_ssize_t place, PyObject *stolen)
{
    if (!stolen)
        return -1;
    PyObject *before = SLOT(object, place);
    SLOT(object, place) = stolen;
    Py_XDECREF(before);
    return 0;
}

/* Return an int that another function returned, which may have failed. */
int number(PyObject *stolen, int64_t *value)
{
    if (!stolen)
        return -1;
    *value = PyLong_AsLongLong(stolen);
    Py_DECREF(stolen);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Take what was used last from a deque, as the caches hold it; NULL without an exception if it is empty. */
PyObject *popped(PyObject *deque)
{
    PyObject *object = PyObject_CallMethodNoArgs(deque, n_pop);
    if (!object && PyErr_ExceptionMatches(PyExc_IndexError))
        PyErr_Clear();
    return object;
}

/* Return whether a call failed whose result nobody needs. */
int done(PyObject *stolen)
{
    Py_XDECREF(stolen);
    return stolen ? 0 : -1;
}

/* Take the current exception, so that other Python can run; NULL if there is none. */
PyObject *taken_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    if (!kind)
        return NULL;
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace)
        PyException_SetTraceback(error, trace);
    Py_DECREF(kind);
    Py_XDECREF(trace);
    return error;
#endif
}

/* Raise an exception again that was taken. */
void give_error(PyObject *stolen)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(stolen);
#else
    PyErr_Restore(Py_NewRef(Py_TYPE(stolen)), stolen, PyException_GetTraceback(stolen));
#endif
}

/* Return an exception as the status of what it ended. */
PyObject *status_of(PyObject *error)
{
    PyObject *name = PyType_GetName(Py_TYPE(error));
    PyObject *status = name ? PyUnicode_FromFormat("%U: %S", name, error) : NULL;
    if (name && !status) { /* an exception that cannot be printed */
        PyErr_Clear();
        return name;
    }
    Py_XDECREF(name);
    return status;
}
