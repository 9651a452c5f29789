//! Sessions and generations: a conversation, and one answer of it under way.

use crate::raw::{c_path, c_string, call, init, sized, sized_text, Callbacks, Keep};
use crate::{Adapter, GenerateOptions, HeadRoles, Result, Stats, TemplateOptions};
use orrery_sys as sys;
use std::os::raw::c_void;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// One sequence of tokens, its KV cache and the conversation. While a generation of it is there and unfinished, calls that
/// change it fail with `Status::BUSY`.
pub struct Session {
    pub(crate) raw: *mut sys::orrery_session,
    held: Arc<Held>,
    n_vocab: usize,
    n_embd: usize,
    log: Arc<Callbacks>,
}
unsafe impl Send for Session {}

/// The session's handle: freed with the last of the session and its cancellers.
struct Held(*mut sys::orrery_session);
unsafe impl Send for Held {}
unsafe impl Sync for Held {}
impl Drop for Held {
    fn drop(&mut self) {
        unsafe { sys::orrery_session_free(self.0) }
    }
}

/// Cancels what a session does at the time, a generation or a long call, from any thread. What begins later is not cancelled.
/// The session's memory stays as long as one of these does.
#[derive(Clone)]
pub struct SessionCanceller {
    held: Arc<Held>,
}

impl SessionCanceller {
    pub fn cancel(&self) {
        unsafe { sys::orrery_session_cancel(self.held.0) }
    }
}

impl Session {
    pub(crate) fn new(raw: *mut sys::orrery_session, n_vocab: usize, n_embd: usize, log: Arc<Callbacks>) -> Session {
        Session { raw, held: Arc::new(Held(raw)), n_vocab, n_embd, log }
    }
    pub fn canceller(&self) -> SessionCanceller {
        SessionCanceller { held: self.held.clone() }
    }
    pub(crate) fn with_sizes(mut session: Session, n_vocab: usize, n_embd: usize) -> Session {
        session.n_vocab = n_vocab;
        session.n_embd = n_embd;
        session
    }
    pub fn add_message(&self, role: &str, content: &str) -> Result<()> {
        let (role, content) = (c_string(role)?, c_string(content)?);
        call(|e| unsafe { sys::orrery_session_add_message(self.raw, role.as_ptr(), content.as_ptr(), e) })
    }
    pub fn add_message_json(&self, message_json: &str) -> Result<()> {
        let json = c_string(message_json)?;
        call(|e| unsafe { sys::orrery_session_add_message_json(self.raw, json.as_ptr(), e) })
    }
    pub fn n_messages(&self) -> usize {
        unsafe { sys::orrery_session_n_messages(self.raw) }
    }
    /// Message i as JSON.
    pub fn message(&self, i: usize) -> Result<String> {
        sized_text(|p, capacity, n, e| unsafe { sys::orrery_session_message(self.raw, i, p, capacity, n, e) })
    }
    pub fn set_template(&self, options: TemplateOptions) -> Result<()> {
        let mut keep = Keep::default();
        let options = options.into_raw(&mut keep)?;
        call(|e| unsafe { sys::orrery_session_set_template(self.raw, &options, e) })
    }
    pub fn rewind_messages(&self, n_messages: usize) -> Result<()> {
        call(|e| unsafe { sys::orrery_session_rewind_messages(self.raw, n_messages, e) })
    }
    pub fn n_tokens(&self) -> usize {
        unsafe { sys::orrery_session_n_tokens(self.raw) }
    }
    pub fn tokens(&self) -> Result<Vec<i32>> {
        sized(|p, capacity, n, e| unsafe { sys::orrery_session_tokens(self.raw, p, capacity, n, e) })
    }
    pub fn rewind(&self, n_tokens: usize) -> Result<()> {
        call(|e| unsafe { sys::orrery_session_rewind(self.raw, n_tokens, e) })
    }
    /// Replaces the session's adapters: each with its scale. Where the list changes, the session drops its tokens.
    pub fn set_adapters(&self, adapters: &[(&Adapter, f32)]) -> Result<()> {
        let one = |(adapter, scale): &(&Adapter, f32)| sys::orrery_adapter_use { adapter: adapter.raw, source: null_mut(), scale: *scale, reserved: 0 };
        let uses: Vec<_> = adapters.iter().map(one).collect();
        call(|e| unsafe { sys::orrery_session_set_adapters(self.raw, uses.as_ptr(), uses.len(), e) })
    }
    pub fn fork(&self) -> Result<Session> {
        let mut raw = null_mut();
        call(|e| unsafe { sys::orrery_session_fork(self.raw, &mut raw, e) })?;
        Ok(Session::new(raw, self.n_vocab, self.n_embd, self.log.clone()))
    }
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path)?;
        call(|e| unsafe { sys::orrery_session_save(self.raw, path.as_ptr(), e) })
    }
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path)?;
        call(|e| unsafe { sys::orrery_session_load(self.raw, path.as_ptr(), e) })
    }
    pub fn save_buffer(&self) -> Result<Vec<u8>> {
        sized(|p: *mut u8, capacity, n, e| unsafe {
            sys::orrery_session_save_buffer(self.raw, p as *mut c_void, capacity, n, e)
        })
    }
    pub fn load_buffer(&self, bytes: &[u8]) -> Result<()> {
        call(|e| unsafe { sys::orrery_session_load_buffer(self.raw, bytes.as_ptr() as *const c_void, bytes.len(), e) })
    }
    /// Appends tokens without generating.
    pub fn evaluate(&self, tokens: &[i32]) -> Result<()> {
        call(|e| unsafe { sys::orrery_session_evaluate(self.raw, tokens.as_ptr(), tokens.len(), null_mut(), e) })
    }
    /// Appends tokens; their logits, (tokens, vocabulary).
    pub fn evaluate_logits(&self, tokens: &[i32]) -> Result<Vec<f32>> {
        let mut logits = vec![0.0; tokens.len() * self.n_vocab];
        let out = logits.as_mut_ptr();
        call(|e| unsafe { sys::orrery_session_evaluate(self.raw, tokens.as_ptr(), tokens.len(), out, e) })?;
        Ok(logits)
    }
    /// Of the last computed token.
    pub fn logits(&self) -> Result<Vec<f32>> {
        let mut logits = vec![0.0; self.n_vocab];
        call(|e| unsafe { sys::orrery_session_logits(self.raw, logits.as_mut_ptr(), self.n_vocab, e) })?;
        Ok(logits)
    }
    /// The final hidden state of the last computed token.
    pub fn embedding(&self) -> Result<Vec<f32>> {
        let mut embedding = vec![0.0; self.n_embd];
        call(|e| unsafe { sys::orrery_session_embedding(self.raw, embedding.as_mut_ptr(), self.n_embd, e) })?;
        Ok(embedding)
    }
    pub fn stats(&self) -> Result<Stats> {
        Stats::fill(|out| call(|e| unsafe { sys::orrery_session_stats(self.raw, out, e) }))
    }
    /// How many KV heads have which of HeteroCache's roles.
    pub fn head_roles(&self) -> Result<HeadRoles> {
        HeadRoles::fill(|out| call(|e| unsafe { sys::orrery_session_head_roles(self.raw, out, e) }))
    }
    /// (n_layers, n_kv_heads), flat: the tokens that each KV head holds on the device.
    pub fn residency(&self) -> Result<Vec<u32>> {
        sized(|p, capacity, n, e| unsafe { sys::orrery_session_residency(self.raw, p, capacity, n, e) })
    }
    /// Adds a user's message and returns the whole answer's text. An answer that fails leaves the message in the conversation.
    pub fn ask(&self, question: &str, options: GenerateOptions) -> Result<String> {
        self.add_message("user", question)?;
        let mut answer = String::new();
        for event in self.generate(options)? {
            if let Event::Text(text) = event? {
                answer.push_str(&text);
            }
        }
        Ok(answer)
    }
    /// Begins the answer to the conversation.
    pub fn generate(&self, options: GenerateOptions) -> Result<Generation> {
        self.begin(options, |o, g, e| unsafe { sys::orrery_generate(self.raw, o, g, e) })
    }
    /// Begins a continuation of exactly these tokens.
    pub fn generate_tokens(&self, tokens: &[i32], options: GenerateOptions) -> Result<Generation> {
        let (data, n) = (tokens.as_ptr(), tokens.len());
        self.begin(options, |o, g, e| unsafe { sys::orrery_generate_tokens(self.raw, data, n, o, g, e) })
    }
    fn begin(
        &self,
        options: GenerateOptions,
        function: impl FnOnce(*const sys::orrery_generate_options, *mut *mut sys::orrery_generation, *mut sys::orrery_error) -> i32,
    ) -> Result<Generation> {
        let (mut keep, mut raw) = (Keep::default(), null_mut());
        let options = options.into_raw(&mut keep)?;
        call(|e| function(&options, &mut raw, e))?;
        let canceller = Canceller { shared: Arc::new(Mutex::new(Shared(raw))) };
        Ok(Generation { raw, canceller, ended: false, callbacks: keep.callbacks, _log: self.log.clone() })
    }
}

struct Shared(*mut sys::orrery_generation);
unsafe impl Send for Shared {}

/// Cancels a generation from any thread, at any time, also when the generation is gone.
#[derive(Clone)]
pub struct Canceller {
    shared: Arc<Mutex<Shared>>, // NULL when the generation is gone
}

impl Canceller {
    pub fn cancel(&self) {
        unsafe { sys::orrery_cancel(self.shared.lock().unwrap().0) }
    }
}

/// One answer under way: an iterator of events, `Done` the last. Dropping it frees the session.
pub struct Generation {
    raw: *mut sys::orrery_generation,
    canceller: Canceller,
    ended: bool,
    callbacks: Callbacks,
    _log: Arc<Callbacks>, // the runtime's log function lives as long as what may call it
}
unsafe impl Send for Generation {}

impl Generation {
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
    pub fn cancel(&self) {
        self.canceller.cancel()
    }
    /// Works until there is something to tell; behind the end it repeats `Done`.
    pub fn next_event(&mut self) -> Result<Event> {
        let mut event = init(|p, bytes| unsafe { sys::orrery_event_init(p, bytes) });
        self.callbacks.call(|e| unsafe { sys::orrery_next(self.raw, &mut event, e) })?;
        Ok(unsafe { Event::from_raw(&event) })
    }
    /// Hands every event to `on_event`, which cancels by returning false.
    pub fn run(&mut self, on_event: impl FnMut(Event) -> bool) -> Result<()> {
        self.callbacks.run(on_event, |function, user, e| unsafe { sys::orrery_run(self.raw, function, user, e) })
    }
}

impl Iterator for Generation {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        if self.ended {
            return None;
        }
        let event = self.next_event();
        self.ended = matches!(event, Ok(Event::Done(_)) | Err(_));
        Some(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.canceller.shared.lock().unwrap().0 = null_mut();
        unsafe { sys::orrery_generation_free(self.raw) }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prompt tokens.
    Progress { done: u64, total: u64 },
    /// One token was chosen; `top` has the likeliest, as token and log-probability.
    Token { token: i32, bytes: Vec<u8>, logprob: f32, top: Vec<(i32, f32)> },
    /// Whole characters of the answer.
    Text(String),
    /// Whole characters of the model's reasoning; with `tools` or `split_reasoning`, as are these:
    Reasoning(String),
    /// A call begins: its number in the answer, and the tool's name.
    Call { call: u32, name: String },
    /// The next part of its arguments: the parts of one call are one JSON object.
    Arguments { call: u32, name: String, text: String },
    /// All of its arguments, once more.
    CallEnd { call: u32, name: String, id: String, text: String },
    /// An event of a newer library, by its number.
    Other(u32),
    Done(Done),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// One of `finish_reason`.
    pub finish_reason: u32,
    pub stop_index: u32,
    pub prompt_tokens: u64,
    pub reused_tokens: u64,
    pub generated_tokens: u64,
    pub first_token_us: u64,
    pub prefill_us: u64,
    pub decode_us: u64,
    /// The text is whole by the grammar.
    pub complete: bool,
}

impl Event {
    /// What the event points to lives until the next call: it is copied.
    pub(crate) unsafe fn from_raw(e: &sys::orrery_event) -> Event {
        let bytes = match e.text_bytes {
            0 => Vec::new(),
            n => std::slice::from_raw_parts(e.text as *const u8, n as usize).to_vec(),
        };
        let text = |p: *const std::os::raw::c_char| if p.is_null() { String::new() } else { std::ffi::CStr::from_ptr(p).to_string_lossy().into_owned() };
        match e.r#type {
            sys::ORRERY_EVENT_PROGRESS => Event::Progress { done: e.done, total: e.total },
            sys::ORRERY_EVENT_TEXT => Event::Text(String::from_utf8_lossy(&bytes).into_owned()),
            sys::ORRERY_EVENT_REASONING => Event::Reasoning(String::from_utf8_lossy(&bytes).into_owned()),
            sys::ORRERY_EVENT_CALL => Event::Call { call: e.call, name: text(e.name) },
            sys::ORRERY_EVENT_ARGUMENTS => Event::Arguments { call: e.call, name: text(e.name), text: String::from_utf8_lossy(&bytes).into_owned() },
            sys::ORRERY_EVENT_CALL_END => {
                Event::CallEnd { call: e.call, name: text(e.name), id: text(e.call_id), text: String::from_utf8_lossy(&bytes).into_owned() }
            }
            sys::ORRERY_EVENT_TOKEN => {
                let top = (0..e.n_top as usize).map(|i| *e.top.add(i)).map(|t| (t.token, t.logprob)).collect();
                Event::Token { token: e.token, bytes, logprob: e.logprob, top }
            }
            sys::ORRERY_EVENT_DONE => Event::Done(Done {
                finish_reason: e.finish_reason,
                stop_index: e.stop_index,
                prompt_tokens: e.prompt_tokens,
                reused_tokens: e.reused_tokens,
                generated_tokens: e.generated_tokens,
                first_token_us: e.first_token_us,
                prefill_us: e.prefill_us,
                decode_us: e.decode_us,
                complete: e.complete != 0,
            }),
            other => Event::Other(other),
        }
    }
}
