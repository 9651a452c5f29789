//! Orrery: language models with long contexts inside your program.
//!
//! ```no_run
//! # fn main() -> orrery::Result<()> {
//! let runtime = orrery::Runtime::new(Default::default())?;
//! let chat = runtime.open("model.gguf", Default::default())?.session(Default::default())?;
//! chat.add_message("user", "Why is the sky blue?")?;
//! for event in chat.generate(Default::default())? {
//!     if let orrery::Event::Text(text) = event? {
//!         print!("{}", text);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Options are structs with the fields of include/orrery.h, which documents them; `Default` has the library's defaults. Values
//! may be dropped in any order. A `Runtime`, `Model` and `Vocab` may be shared between threads; a `Session` and a `Generation`
//! may move to another one. A callback that returns false cancels; a panic in it goes on in the call that it belongs to.

mod functions;
mod raw;
mod session;
mod types;

pub use functions::{FunctionResult, Functions};
use orrery_sys as sys;
use raw::{c_path, c_string, call, sized, sized_text, Callbacks, Keep};
pub use session::{Canceller, Done, Event, Generation, Session, SessionCanceller};
use std::fmt;
use std::os::raw::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;
pub use types::*;

pub type LogFn = Box<dyn Fn(i32, &str) + Send + Sync>;
pub type ProgressFn = Box<dyn FnMut(u64, u64) -> bool + Send>;
pub type LogitsFn = Box<dyn FnMut(&mut [f32], &[i32]) -> bool + Send>;
pub type Result<T> = std::result::Result<T, Error>;

/// `orrery_status`; the constants are the header's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub i32);

impl Status {
    pub fn name(self) -> String {
        raw::text(unsafe { sys::orrery_status_name(self.0) })
    }
}
impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A call failed; the fields are those of `orrery_error`.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    pub status: Status,
    pub message: String,
    pub native_code: i64,
    pub bytes_requested: u64,
    pub bytes_available: u64,
    pub offset: u64,
    pub line: u32,
    pub column: u32,
    /// The field of the options that is at fault; empty: none.
    pub option: String,
}

impl Error {
    pub(crate) fn new(status: Status, message: &str) -> Error {
        let (message, native_code, bytes_requested, bytes_available) = (message.to_owned(), 0, 0, 0);
        Error { status, message, native_code, bytes_requested, bytes_available, offset: 0, line: 0, column: 0, option: String::new() }
    }
}
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.status.name())
    }
}
impl std::error::Error for Error {}

/// A field of a result, by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Integer(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
}

pub fn abi_version() -> u32 {
    unsafe { sys::orrery_abi_version() }
}
pub fn version() -> String {
    raw::text(unsafe { sys::orrery_version() })
}
pub fn build_info() -> String {
    raw::text(unsafe { sys::orrery_build_info() })
}

/// Before anything else is called: the library that was loaded is the one that this crate knows.
fn check_abi() -> Result<()> {
    if abi_version() == sys::ORRERY_ABI_VERSION {
        return Ok(());
    }
    Err(Error::new(Status::UNSUPPORTED, &format!("the library has ABI {}, this crate wants {}", abi_version(), sys::ORRERY_ABI_VERSION)))
}

/// The GPUs of this machine; `RuntimeOptions::device` is an index of this list.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    check_abi()?;
    (0..unsafe { sys::orrery_devices() })
        .map(|i| DeviceInfo::fill(|out| call(|e| unsafe { sys::orrery_device_get_info(i, out, e) })))
        .collect()
}

/// Where a GGUF file lies. Functions take a path, too: `runtime.open("model.gguf", ...)`.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    Path(PathBuf),
    /// The open file `fd`, or `bytes` of it from `offset` on (0: up to its end), such as an asset of an archive. It may be closed behind the call.
    Fd { fd: i32, offset: u64, bytes: u64 },
    /// A whole file in memory. `Runtime::open` copies it.
    Memory(&'a [u8]),
}
impl Source<'_> {
    pub fn fd(fd: i32) -> Source<'static> {
        Source::Fd { fd, offset: 0, bytes: 0 }
    }
    /// Calls `function` with the source as C takes it.
    fn with<T>(&self, function: impl FnOnce(*const sys::orrery_source) -> Result<T>) -> Result<T> {
        check_abi()?;
        let mut raw = raw::init(|p: *mut sys::orrery_source, bytes| unsafe { sys::orrery_source_init(p, bytes) });
        let path; // lives as long as the call
        match self {
            Source::Path(given) => {
                path = c_path(given)?;
                raw.path = path.as_ptr();
            }
            Source::Fd { fd, offset, bytes } => {
                raw.kind = source_kind::FD;
                (raw.fd, raw.fd_offset, raw.fd_bytes) = (*fd, *offset, *bytes);
            }
            Source::Memory(file) => {
                raw.kind = source_kind::MEMORY;
                (raw.memory, raw.memory_bytes) = (file.as_ptr() as *const c_void, file.len() as u64);
            }
        }
        function(&raw)
    }
}
macro_rules! source_of_path {
    ($($type:ty),*) => {
        $(impl<'a> From<$type> for Source<'a> {
            fn from(path: $type) -> Source<'a> {
                Source::Path(PathBuf::from(path))
            }
        })*
    };
}
source_of_path!(&str, &String, String, &Path, &PathBuf, PathBuf, &std::ffi::OsStr);

/// JSON: what is in a file.
pub fn inspect<'a>(source: impl Into<Source<'a>>) -> Result<String> {
    source.into().with(|file| sized_text(|p, capacity, n, e| unsafe { sys::orrery_inspect(file, p, capacity, n, e) }))
}
/// Bytes of one token's K and V of one head, in a `kv_type`.
pub fn kv_type_bytes(kv_type: u32, key_dim: u32, value_dim: u32) -> u64 {
    unsafe { sys::orrery_kv_type_bytes(kv_type, key_dim, value_dim) }
}
/// JSON: the table of KV policies.
pub fn policies() -> Result<String> {
    check_abi()?;
    sized_text(|p, capacity, n, e| unsafe { sys::orrery_policies(p, capacity, n, e) })
}
pub fn head_profile_import(profile_json: &str) -> Result<String> {
    let json = c_string(profile_json)?;
    sized_text(|p, capacity, n, e| unsafe { sys::orrery_head_profile_import(json.as_ptr(), p, capacity, n, e) })
}
pub fn head_profile_import_gates(gates: &str, sparsity: f64) -> Result<String> {
    let gates = c_string(gates)?;
    sized_text(|p, capacity, n, e| unsafe { sys::orrery_head_profile_import_gates(gates.as_ptr(), sparsity, p, capacity, n, e) })
}
/// What a model and a session would take, from the file's header alone.
pub fn plan<'a>(
    source: impl Into<Source<'a>>,
    runtime: RuntimeOptions,
    model: ModelOptions,
    session: SessionOptions,
) -> Result<PlanResult> {
    let mut keep = Keep::default();
    let (r, m, s) = (runtime.into_raw(&mut keep)?, model.into_raw(&mut keep)?, session.into_raw(&mut keep)?);
    source.into().with(|file| PlanResult::fill(|out| call(|e| unsafe { sys::orrery_plan(file, &r, &m, &s, out, e) })))
}
/// The same region by region: its sums are those of `plan`.
pub fn plan_regions<'a>(
    source: impl Into<Source<'a>>,
    runtime: RuntimeOptions,
    model: ModelOptions,
    session: SessionOptions,
) -> Result<Vec<PlanRegion>> {
    let mut keep = Keep::default();
    let (r, m, s) = (runtime.into_raw(&mut keep)?, model.into_raw(&mut keep)?, session.into_raw(&mut keep)?);
    source.into().with(|file| {
        let first = raw::init(|p: *mut sys::orrery_plan_region, bytes| unsafe { sys::orrery_plan_region_init(p, bytes) });
        let all = raw::sized_of(first, |p, capacity, n, e| unsafe {
            sys::orrery_plan_regions(file, &r, &m, &s, p, capacity, n, e)
        })?;
        all.iter().map(|region| PlanRegion::fill(|out| Ok(unsafe { *out = *region }))).collect()
    })
}

/// A type that owns a handle of the library, and frees it when it is dropped.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $raw:ident, $free:ident, { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        pub struct $name {
            pub(crate) raw: *mut sys::$raw,
            $(pub(crate) $field: $type,)*
        }
        impl Drop for $name {
            fn drop(&mut self) {
                unsafe { sys::$free(self.raw) }
            }
        }
        unsafe impl Send for $name {}
    };
}

handle!(
    /// Threads, the device and its arena.
    Runtime, orrery_runtime, orrery_runtime_free, { log: Arc<Callbacks> }
);
unsafe impl Sync for Runtime {}

impl Runtime {
    pub fn new(options: RuntimeOptions) -> Result<Runtime> {
        check_abi()?;
        let (mut keep, mut raw) = (Keep::default(), null_mut());
        let options = options.into_raw(&mut keep)?;
        call(|e| unsafe { sys::orrery_runtime_create(&options, &mut raw, e) })?;
        Ok(Runtime { raw, log: Arc::new(keep.callbacks) })
    }
    pub fn info(&self) -> Result<RuntimeInfo> {
        RuntimeInfo::fill(|out| call(|e| unsafe { sys::orrery_runtime_get_info(self.raw, out, e) }))
    }
    /// Opens a GGUF file: of a path, or of a `Source`. A file in memory is copied.
    pub fn open<'a>(&self, source: impl Into<Source<'a>>, mut options: ModelOptions) -> Result<Model> {
        let (source, mut keep, mut raw) = (source.into(), Keep::default(), null_mut());
        if matches!(source, Source::Memory(_)) {
            options.load = load_mode::READ;
        }
        let options = options.into_raw(&mut keep)?;
        source.with(|file| keep.callbacks.call(|e| unsafe { sys::orrery_model_open(self.raw, file, &options, &mut raw, e) }))?;
        Ok(Model { raw, log: self.log.clone() })
    }
    /// Changes the number of threads and their `priority` between two steps; 0: the default number.
    pub fn set_threads(&self, n_threads: i32, priority: i32) -> Result<()> {
        call(|e| unsafe { sys::orrery_runtime_set_threads(self.raw, n_threads, priority, e) })
    }
}

handle!(
    /// Tokenizer and chat template on their own.
    Vocab, orrery_vocab, orrery_vocab_free, {}
);
unsafe impl Sync for Vocab {}

impl Vocab {
    /// Opens the vocabulary of a GGUF file: of a path, or of a `Source`.
    pub fn open<'a>(source: impl Into<Source<'a>>) -> Result<Vocab> {
        let mut raw = null_mut();
        source.into().with(|file| call(|e| unsafe { sys::orrery_vocab_open(file, &mut raw, e) }))?;
        Ok(Vocab { raw })
    }
    pub fn info(&self) -> Result<VocabInfo> {
        VocabInfo::fill(|out| call(|e| unsafe { sys::orrery_vocab_get_info(self.raw, out, e) }))
    }
    pub fn tokenize(&self, text: &str, flags: u32) -> Result<Vec<i32>> {
        let data = text.as_ptr() as *const c_char;
        sized(|p, capacity, n, e| unsafe { sys::orrery_tokenize(self.raw, data, text.len(), flags, p, capacity, n, e) })
    }
    /// The bytes that the tokens stand for, possibly ending inside a character.
    pub fn detokenize(&self, tokens: &[i32], flags: u32) -> Result<Vec<u8>> {
        let (data, len) = (tokens.as_ptr(), tokens.len());
        sized(|p: *mut u8, capacity, n, e| unsafe {
            sys::orrery_detokenize(self.raw, data, len, flags, p as *mut c_char, capacity, n, e)
        })
    }
    pub fn token_flags(&self, token: i32) -> u32 {
        unsafe { sys::orrery_token_flags(self.raw, token) }
    }
    pub fn render_chat(&self, messages_json: &str, options: TemplateOptions) -> Result<String> {
        let (json, mut keep) = (c_string(messages_json)?, Keep::default());
        let options = options.into_raw(&mut keep)?;
        sized_text(|p, capacity, n, e| unsafe { sys::orrery_render_chat(self.raw, json.as_ptr(), &options, p, capacity, n, e) })
    }
    /// Describes as JSON how the template has reasoning and calls of tools written: "calls" is null where "why_none" says why.
    pub fn chat_format(&self, options: TemplateOptions) -> Result<String> {
        let mut keep = Keep::default();
        let options = options.into_raw(&mut keep)?;
        sized_text(|p, capacity, n, e| unsafe { sys::orrery_chat_format(self.raw, &options, p, capacity, n, e) })
    }
}

handle!(
    /// Immutable; any number of threads may use it.
    Model, orrery_model, orrery_model_free, { log: Arc<Callbacks> }
);
unsafe impl Sync for Model {}

impl Model {
    pub fn info(&self) -> Result<ModelInfo> {
        ModelInfo::fill(|out| call(|e| unsafe { sys::orrery_model_get_info(self.raw, out, e) }))
    }
    /// Layer `i`, from 0 to `n_layers` - 1: layers may differ in their heads, windows, states and experts.
    pub fn layer(&self, i: u32) -> Result<LayerInfo> {
        LayerInfo::fill(|out| call(|e| unsafe { sys::orrery_model_layer_info(self.raw, i, out, e) }))
    }
    /// Where a mixture's experts lie, and what the link brought.
    pub fn experts(&self) -> Result<ExpertsInfo> {
        ExpertsInfo::fill(|out| call(|e| unsafe { sys::orrery_model_experts(self.raw, out, e) }))
    }
    /// The layers that lie in host memory, and what the link brought of them.
    pub fn streaming(&self) -> Result<StreamingInfo> {
        StreamingInfo::fill(|out| call(|e| unsafe { sys::orrery_model_streaming(self.raw, out, e) }))
    }
    pub fn vocab(&self) -> Result<Vocab> {
        let raw = unsafe { sys::orrery_model_vocab(self.raw) };
        if raw.is_null() {
            return Err(Error::new(Status::OUT_OF_HOST_MEMORY, "no memory for a vocabulary"));
        }
        Ok(Vocab { raw })
    }
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        let (mut keep, mut raw) = (Keep::default(), null_mut());
        let options = options.into_raw(&mut keep)?;
        call(|e| unsafe { sys::orrery_session_open(self.raw, &options, &mut raw, e) })?;
        let info = self.info();
        let session = Session::new(raw, 0, 0, self.log.clone());
        let info = info?;
        Ok(Session::with_sizes(session, info.n_vocab as usize, info.n_embd as usize))
    }
    /// Opens a LoRA adapter of the model, whose source may go afterwards.
    pub fn adapter<'a>(&self, source: impl Into<Source<'a>>) -> Result<Adapter> {
        let mut raw = null_mut();
        source.into().with(|file| call(|e| unsafe { sys::orrery_adapter_open(self.raw, file, &mut raw, e) }))?;
        Ok(Adapter { raw })
    }
    /// Vectors of texts. `progress` cancels by returning false.
    pub fn embed(&self, texts: &[&str], options: EmbedOptions) -> Result<Embeddings> {
        let size = match options.n_dimensions {
            0 => self.info()?.n_embd as usize,
            n => n as usize,
        };
        let mut keep = Keep::default();
        let options = options.into_raw(&mut keep)?;
        let given = c_texts(texts)?;
        let pointers: Vec<_> = given.iter().map(|text| text.as_ptr()).collect();
        let (mut n, mut n_tokens) = (0usize, vec![0u32; texts.len()]);
        call(|e| unsafe { sys::orrery_embed(self.raw, pointers.as_ptr(), pointers.len(), &options, null_mut(), 0, &mut n, null_mut(), e) })?;
        let mut floats = vec![0f32; n];
        keep.callbacks.call(|e| unsafe {
            sys::orrery_embed(self.raw, pointers.as_ptr(), pointers.len(), &options, floats.as_mut_ptr(), n, &mut n, n_tokens.as_mut_ptr(), e)
        })?;
        Ok(Embeddings { vectors: floats.chunks(size).map(<[f32]>::to_vec).collect(), n_tokens })
    }
    /// How well each text answers the query: more is better. The model must have a reranker's head (`ModelInfo::purpose`).
    pub fn rank(&self, query: &str, texts: &[&str], options: EmbedOptions) -> Result<Vec<f32>> {
        let mut keep = Keep::default();
        let options = options.into_raw(&mut keep)?;
        let (query, given) = (c_texts(&[query])?, c_texts(texts)?);
        let pointers: Vec<_> = given.iter().map(|text| text.as_ptr()).collect();
        let mut scores = vec![0f32; texts.len()];
        keep.callbacks.call(|e| unsafe {
            sys::orrery_rank(self.raw, query[0].as_ptr(), pointers.as_ptr(), pointers.len(), &options, scores.as_mut_ptr(), scores.len(), null_mut(), e)
        })?;
        Ok(scores)
    }
    /// Finds out which heads attend alike, from texts as tokens.
    pub fn calibrate(&self, texts: &[Vec<i32>], options: CalibrateOptions) -> Result<Calibration> {
        let (tokens, lengths): (Vec<i32>, Vec<usize>) = (texts.concat(), texts.iter().map(Vec::len).collect());
        let (mut keep, mut raw) = (Keep::default(), null_mut());
        let options = options.into_raw(&mut keep)?;
        keep.callbacks.call(|e| unsafe {
            sys::orrery_calibrate(self.raw, tokens.as_ptr(), lengths.as_ptr(), lengths.len(), &options, &mut raw, e)
        })?;
        Ok(Calibration { raw })
    }
}

handle!(
    /// A LoRA adapter of a model. Sessions keep the adapters that they have (`Session::set_adapters`).
    Adapter, orrery_adapter, orrery_adapter_free, {}
);
unsafe impl Sync for Adapter {}

handle!(
    /// A folder of saved sessions with a budget in bytes. Sessions with the option `folder` find their prompts' beginnings there.
    Folder, orrery_folder, orrery_folder_free, {}
);
unsafe impl Sync for Folder {}

impl Folder {
    /// Opens a folder, and makes it if it is not there. A `max_bytes` of 0 is no limit.
    pub fn open(path: impl AsRef<std::path::Path>, max_bytes: u64) -> Result<Folder> {
        let (path, mut raw) = (c_path(path)?, null_mut());
        call(|e| unsafe { sys::orrery_folder_open(path.as_ptr(), max_bytes, &mut raw, e) })?;
        Ok(Folder { raw })
    }
    /// Without a name, the entry takes the place of shorter ones of the same prompt.
    pub fn save(&self, session: &Session, name: Option<&str>) -> Result<()> {
        let name = name.map(c_string).transpose()?;
        let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        call(|e| unsafe { sys::orrery_folder_save(self.raw, session.raw, name, e) })
    }
    pub fn load(&self, session: &Session, name: &str) -> Result<()> {
        let name = c_string(name)?;
        call(|e| unsafe { sys::orrery_folder_load(self.raw, session.raw, name.as_ptr(), e) })
    }
    pub fn remove(&self, name: &str) -> Result<()> {
        let name = c_string(name)?;
        call(|e| unsafe { sys::orrery_folder_remove(self.raw, name.as_ptr(), e) })
    }
    /// The entries as JSON, the last used first.
    pub fn list(&self) -> Result<String> {
        sized_text(|p, capacity, n, e| unsafe { sys::orrery_folder_list(self.raw, p, capacity, n, e) })
    }
}

/// Vectors in the order of the texts, one of each text or, without pooling, of each token.
#[derive(Clone, Debug)]
pub struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    /// Of each text.
    pub n_tokens: Vec<u32>,
}

fn c_texts(texts: &[&str]) -> Result<Vec<std::ffi::CString>> {
    let one = |text: &&str| std::ffi::CString::new(*text).map_err(|_| Error::new(Status::INVALID_ARGUMENT, "a NUL in a string"));
    texts.iter().map(one).collect()
}

handle!(
    /// What `Model::calibrate` found out.
    Calibration, orrery_calibration, orrery_calibration_free, {}
);

impl Calibration {
    /// JSON for the session option `head_profile`.
    pub fn profile(&self) -> Result<String> {
        sized_text(|p, capacity, n, e| unsafe { sys::orrery_calibration_profile(self.raw, p, capacity, n, e) })
    }
    pub fn steps(&self) -> Result<String> {
        sized_text(|p, capacity, n, e| unsafe { sys::orrery_calibration_steps(self.raw, p, capacity, n, e) })
    }
}

handle!(
    /// A grammar and a place in it, for samplers of your own and for checks. One thread at a time.
    Matcher, orrery_matcher, orrery_matcher_free, {}
);

impl Vocab {
    /// A grammar over these tokens, by the grammar options of `Session::generate`.
    pub fn matcher(&self, options: GenerateOptions) -> Result<Matcher> {
        let (mut keep, mut raw) = (Keep::default(), null_mut());
        let options = options.into_raw(&mut keep)?;
        call(|e| unsafe { sys::orrery_matcher_create(self.raw, &options, &mut raw, e) })?;
        Ok(Matcher { raw })
    }
}

impl Matcher {
    /// Bit i of word w: token 32 w + i may come next.
    pub fn mask(&self) -> Result<Vec<u32>> {
        sized(|p, capacity, n, e| unsafe { sys::orrery_matcher_mask(self.raw, p, capacity, n, e) })
    }
    /// Goes on with the first tokens that are allowed. Returns how many.
    pub fn accept(&self, tokens: &[i32]) -> Result<usize> {
        let mut n = 0;
        call(|e| unsafe { sys::orrery_matcher_accept(self.raw, tokens.as_ptr(), tokens.len(), &mut n, e) })?;
        Ok(n)
    }
    /// Goes back to the first n_tokens accepted ones.
    pub fn rewind(&self, n_tokens: usize) -> Result<()> {
        call(|e| unsafe { sys::orrery_matcher_rewind(self.raw, n_tokens, e) })
    }
    /// Tokens of the text that follows in any case.
    pub fn forced(&self) -> Result<Vec<i32>> {
        sized(|p, capacity, n, e| unsafe { sys::orrery_matcher_forced(self.raw, p, capacity, n, e) })
    }
    /// How many bytes of a text can begin an answer, and whether the whole text is one.
    pub fn match_text(&self, text: &str) -> Result<(usize, bool)> {
        let (mut matched, mut complete) = (0, 0);
        call(|e| unsafe { sys::orrery_matcher_match(self.raw, text.as_ptr() as *const _, text.len(), &mut matched, &mut complete, e) })?;
        Ok((matched, complete != 0))
    }
    /// JSON: rules, states, bytes, and notices of what does not constrain.
    pub fn describe(&self) -> Result<String> {
        sized_text(|p, capacity, n, e| unsafe { sys::orrery_matcher_describe(self.raw, p, capacity, n, e) })
    }
}
