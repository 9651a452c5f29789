//! Between Rust and C: structs by their `_init`, statuses to errors, buffers of the header's "Sizes out" kind, and closures that
//! C calls. A panic does not cross C: it ends the call there and goes on behind it.

use crate::{Error, LogFn, LogitsFn, ProgressFn, Result, Status};
use orrery_sys as sys;
use std::any::Any;
use std::ffi::{CStr, CString};
use std::mem::{size_of, MaybeUninit};
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A struct that its `_init` has filled; the size that it writes must be ours.
pub fn init<T>(fill: impl FnOnce(*mut T, usize)) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    fill(value.as_mut_ptr(), size_of::<T>());
    // Every such struct begins with struct_size, and zeroes are a value of all of its fields.
    let bytes = unsafe { *(value.as_ptr() as *const u32) } as usize;
    assert_eq!(bytes, size_of::<T>(), "the library has structs of another size");
    unsafe { value.assume_init() }
}

/// Calls a function that takes an `orrery_error` last.
pub fn call(function: impl FnOnce(*mut sys::orrery_error) -> i32) -> Result<()> {
    let mut error = init(|p, bytes| unsafe { sys::orrery_error_init(p, bytes) });
    match function(&mut error) {
        sys::ORRERY_OK => Ok(()),
        status => Err(Error {
            status: Status(status),
            message: text(error.message.as_ptr()),
            native_code: error.native_code,
            bytes_requested: error.bytes_requested,
            bytes_available: error.bytes_available,
            offset: error.offset,
            line: error.line,
            column: error.column,
            option: text(error.option.as_ptr()),
        }),
    }
}

/// Calls a function of the "Sizes out" kind: for the size, then for the content.
pub fn sized<T: Clone + Default>(
    function: impl Fn(*mut T, usize, *mut usize, *mut sys::orrery_error) -> i32,
) -> Result<Vec<T>> {
    sized_of(T::default(), function)
}

/// `sized` for a buffer that holds copies of `empty` before the call.
pub fn sized_of<T: Clone>(
    empty: T,
    function: impl Fn(*mut T, usize, *mut usize, *mut sys::orrery_error) -> i32,
) -> Result<Vec<T>> {
    let mut n = 0;
    call(|e| function(std::ptr::null_mut(), 0, &mut n, e))?;
    loop {
        let mut buffer = vec![empty.clone(); n.max(1)];
        let capacity = n;
        match call(|e| function(buffer.as_mut_ptr(), capacity, &mut n, e)) {
            Err(e) if e.status == Status::INVALID_ARGUMENT && n > capacity => continue, // longer meanwhile
            Err(e) => return Err(e),
            Ok(()) => buffer.truncate(n),
        }
        return Ok(buffer);
    }
}

/// `sized` for text.
pub fn sized_text(
    function: impl Fn(*mut c_char, usize, *mut usize, *mut sys::orrery_error) -> i32,
) -> Result<String> {
    let bytes = sized::<u8>(|p, capacity, n, e| function(p as *mut c_char, capacity, n, e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

pub fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(Status::INVALID_ARGUMENT, "a NUL in a string"))
}

/// A path as the library takes it: the system's own bytes, UTF-8 on Windows.
pub fn c_path(path: impl AsRef<Path>) -> Result<CString> {
    #[cfg(unix)]
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_ref().as_os_str());
    #[cfg(not(unix))]
    let bytes = path.as_ref().to_str().ok_or_else(|| Error::new(Status::INVALID_ARGUMENT, "a path that is not Unicode"))?;
    CString::new(bytes).map_err(|_| Error::new(Status::INVALID_ARGUMENT, "a NUL in a path"))
}

/// "NAME VALUE"
pub fn pair<A: std::str::FromStr, B: std::str::FromStr>(text: &str) -> Option<(A, B)> {
    let (a, b) = text.split_once(' ')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

/// Closures that C calls, and what the first of them to panic said.
#[derive(Default)]
pub struct Callbacks {
    kept: Vec<Box<dyn Any + Send>>,
    panic: Arc<Mutex<Option<Box<dyn Any + Send>>>>,
}

struct Closure<F> {
    function: F,
    panic: Arc<Mutex<Option<Box<dyn Any + Send>>>>,
}

/// What C hands back as `user`, called; 1, which cancels, where it panicked.
unsafe fn enter<F>(user: *mut c_void, arguments: impl FnOnce(&mut F) -> bool) -> i32 {
    let closure = &mut *(user as *mut Closure<F>);
    match catch_unwind(AssertUnwindSafe(|| arguments(&mut closure.function))) {
        Ok(go_on) => !go_on as i32,
        Err(payload) => {
            closure.panic.lock().unwrap().get_or_insert(payload);
            1
        }
    }
}

unsafe fn slice<'a, T>(data: *const T, n: usize) -> &'a [T] {
    if n == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, n)
}

unsafe extern "C" fn on_log(user: *mut c_void, level: i32, message: *const c_char) {
    // Threads may log at once: the function is a Fn, and this takes no exclusive reference.
    let closure = &*(user as *const Closure<LogFn>);
    let _ = catch_unwind(AssertUnwindSafe(|| (closure.function)(level, &text(message))));
}
unsafe extern "C" fn on_progress(user: *mut c_void, done: u64, total: u64) -> i32 {
    enter::<ProgressFn>(user, |f| f(done, total))
}
unsafe extern "C" fn on_logits(user: *mut c_void, logits: *mut f32, n_vocab: usize, tokens: *const i32, n: usize) -> i32 {
    enter::<LogitsFn>(user, |f| f(std::slice::from_raw_parts_mut(logits, n_vocab), slice(tokens, n)))
}
unsafe extern "C" fn on_event<F: FnMut(crate::Event) -> bool>(user: *mut c_void, event: *const sys::orrery_event) -> i32 {
    enter::<F>(user, |f| f(crate::Event::from_raw(&*event)))
}

impl Callbacks {
    fn keep<F: Send + 'static>(&mut self, function: F) -> *mut c_void {
        let mut closure = Box::new(Closure { function, panic: self.panic.clone() });
        let user = &mut *closure as *mut Closure<F> as *mut c_void;
        self.kept.push(closure);
        user
    }

    /// `call`, and behind it the panic of a callback.
    pub fn call(&self, function: impl FnOnce(*mut sys::orrery_error) -> i32) -> Result<()> {
        let done = call(function);
        let panic = self.panic.lock().unwrap().take();
        match panic {
            Some(payload) => resume_unwind(payload),
            None => done,
        }
    }

    /// Runs `function` with a callback for `orrery_run`, which need not outlive it.
    pub fn run<F: FnMut(crate::Event) -> bool>(
        &self,
        on: F,
        function: impl FnOnce(sys::orrery_event_fn, *mut c_void, *mut sys::orrery_error) -> i32,
    ) -> Result<()> {
        let mut closure = Closure { function: on, panic: self.panic.clone() };
        let user = &mut closure as *mut Closure<F> as *mut c_void;
        self.call(|e| function(Some(on_event::<F>), user, e))
    }
}

/// What options point to. Callbacks may be called longer than that: by a runtime, by a generation.
#[derive(Default)]
pub struct Keep {
    strings: Vec<CString>,
    arrays: Vec<Box<dyn Any>>,
    pub callbacks: Callbacks,
}

impl Keep {
    pub fn string(&mut self, text: &str) -> Result<*const c_char> {
        self.strings.push(c_string(text)?);
        Ok(self.strings[self.strings.len() - 1].as_ptr())
    }
    pub fn source(&mut self, path: &str) -> Result<*const sys::orrery_source> {
        let mut raw = init(|p: *mut sys::orrery_source, bytes| unsafe { sys::orrery_source_init(p, bytes) });
        raw.path = self.string(path)?;
        Ok(self.array(vec![raw]))
    }
    pub fn strings(&mut self, texts: &[String]) -> Result<*const *const c_char> {
        let pointers = texts.iter().map(|text| self.string(text)).collect::<Result<Vec<_>>>()?;
        Ok(self.array(pointers))
    }
    pub fn array<T: 'static>(&mut self, items: Vec<T>) -> *const T {
        let items = Box::new(items);
        let pointer = items.as_ptr();
        self.arrays.push(items);
        pointer
    }
    /// Keeps a handle's owner for as long as C may read the handle.
    pub fn hold<T: 'static>(&mut self, owner: T) {
        self.arrays.push(Box::new(owner));
    }
    pub fn orrery_log_fn(&mut self, function: LogFn) -> (sys::orrery_log_fn, *mut c_void) {
        (Some(on_log), self.callbacks.keep(function))
    }
    pub fn orrery_progress_fn(&mut self, function: ProgressFn) -> (sys::orrery_progress_fn, *mut c_void) {
        (Some(on_progress), self.callbacks.keep(function))
    }
    pub fn orrery_logits_fn(&mut self, function: LogitsFn) -> (sys::orrery_logits_fn, *mut c_void) {
        (Some(on_logits), self.callbacks.keep(function))
    }
}
