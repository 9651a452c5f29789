//! What the steps of main.rs go by: things, pending options, callbacks and fields by name; events and quoted texts as lines.
use orrery::*;
use std::collections::HashMap;
use std::panic::panic_any;
use std::sync::{Arc, Mutex};

pub struct Raised;
pub type Act = Box<dyn Fn(Option<&mut [f32]>) -> bool + Send + Sync>;
pub enum Thing {
    Runtime(Runtime), Vocab(Vocab), Model(Arc<Model>), Session(Session), Generation(Generation), Calibration(Calibration), Matcher(Matcher), Adapter(Adapter), Folder(Arc<Folder>),
    Plan(PlanResult), Bytes(Vec<u8>),
}
pub type Setting = (String, String, Option<(String, Vec<usize>)>); // field, text; of a callback: action, numbers
#[derive(Default)]
pub struct Runner {
    pub things: HashMap<String, Thing>,
    pub cancellers: HashMap<String, Canceller>,
    pub pending: Vec<(String, Setting)>,
    pub calls: Arc<Mutex<HashMap<String, usize>>>,
}

pub fn yes(value: bool) -> &'static str { if value { "yes" } else { "no" } }
pub fn quote(data: &[u8]) -> String {
    let one = |&b: &u8| if (32..127).contains(&b) && b != b'"' && b != b'\\' { (b as char).to_string() } else { format!("\\x{:02x}", b) };
    format!("\"{}\"", data.iter().map(one).collect::<String>())
}
pub fn field(value: Value) -> String {
    match value {
        Value::Integer(i) => i.to_string(), Value::Float(x) => x.to_string(), Value::Text(t) => quote(t.as_bytes()),
        Value::Bytes(b) => b.iter().map(|b| format!("{:02x}", b)).collect(),
    }
}
pub fn join<T: ToString>(items: impl IntoIterator<Item = T>) -> String { items.into_iter().map(|x| x.to_string()).collect::<Vec<_>>().join(" ") }
pub fn largest(row: &[f32]) -> usize { (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) }
pub fn show(event: &Event) -> bool {
    match event {
        Event::Progress { done, total } => println!("progress {} {}", done, total),
        Event::Text(text) => println!("text {}", quote(text.as_bytes())),
        Event::Token { token, bytes, logprob, top } if top.is_empty() && *logprob <= 0.0 => println!("token {} {}", token, quote(bytes)),
        Event::Token { token, bytes, logprob, top } =>
            println!("token {} {} near {} {}", token, quote(bytes), (0.5 - logprob).floor() as i32, join(top.iter().map(|t| t.0))),
        Event::Done(d) => println!("done {} {} {} {} {}{}", d.finish_reason, d.stop_index, d.prompt_tokens, d.reused_tokens, d.generated_tokens, if d.complete { " complete" } else { "" }),
        Event::Reasoning(text) => println!("reasoning {}", quote(text.as_bytes())),
        Event::Call { call, name } => println!("call {} {}", call, name),
        Event::Arguments { call, name, text } => println!("arguments {} {} {}", call, name, quote(text.as_bytes())),
        Event::CallEnd { call, name, id, .. } => println!("call_end {} {} {}", call, name, id),
        other => println!("{:?}", other),
    }
    matches!(event, Event::Done(_))
}
pub fn drain(g: &mut Generation, limit: usize) -> Result<()> {
    for _ in 0..limit { if show(&g.next_event()?) { break; } }
    Ok(())
}
pub fn functions(r: &mut Runner, session: &str, most_turns: usize, name: &str, schema: &str) -> Result<()> {
    let mut functions = Functions::new();
    (functions.template, functions.most_turns) = (options!(r, TemplateOptions, "template"), most_turns);
    let settings = r.take("generate");
    let options = || {
        let mut options = GenerateOptions::default();
        for (field, text, _) in &settings { assert!(options.set(field, text), "{}", field); }
        options
    };
    functions.add(name, "", schema, |_| { println!("function {}", name); Ok("seen by ".to_owned() + name) });
    Ok(println!("{}", quote(functions.run(get!(r, Session, session), options)?.as_bytes())))
}
pub fn embed(e: Embeddings) -> Result<()> {
    let products: Vec<f32> = e.vectors[1..].iter().map(|v| v.iter().zip(&e.vectors[0]).map(|(a, b)| a * b).sum()).collect();
    Ok(println!("{} {} {} nearest {}", e.vectors.len(), e.vectors[0].len(), join(&e.n_tokens), 1 + largest(&products)))
}
pub fn answer(g: Generation) -> Result<()> {
    let mut text = String::new();
    for event in g {
        match event? {
            Event::Text(piece) => text += &piece,
            Event::Done(done) => println!("{} {}", quote(text.as_bytes()), done.finish_reason),
            _ => (),
        }
    }
    Ok(())
}

impl Runner {
    pub fn act(&self, (action, numbers): (String, Vec<usize>), field: &str) -> Act {
        let (calls, field) = (self.calls.clone(), field.to_owned());
        Box::new(move |logits: Option<&mut [f32]>| {
            let n = { let mut calls = calls.lock().unwrap(); *calls.get_mut(&field).unwrap() += 1; calls[&field] - 1 };
            if action == "raise" { panic_any(Raised) }
            if let (Some(logits), "force") = (logits, action.as_str()) { logits[numbers[n % numbers.len()]] = 1e9 }
            action != "stop"
        })
    }
    /// The model that `set session.draft_model` has named.
    pub fn draft(&mut self) -> Option<Arc<Model>> {
        let at = self.pending.iter().position(|(s, (field, _, _))| s == "session" && field == "draft_model")?;
        let (_, (_, name, _)) = self.pending.remove(at);
        Some(get!(self, Model, name.as_str()).clone())
    }
    /// The folder that `set session.folder` has named.
    pub fn folder(&mut self) -> Option<Arc<Folder>> {
        let at = self.pending.iter().position(|(s, (field, _, _))| s == "session" && field == "folder")?;
        let (_, (_, name, _)) = self.pending.remove(at);
        Some(get!(self, Folder, name.as_str()).clone())
    }
    pub fn take(&mut self, name: &str) -> Vec<Setting> {
        let (taken, kept) = self.pending.drain(..).partition(|(struct_name, _)| struct_name == name);
        self.pending = kept;
        Vec::into_iter(taken).map(|(_, setting)| setting).collect()
    }
    pub fn set(&mut self, name: &str, text: String, action: Option<(String, Vec<usize>)>) {
        let (struct_name, field) = name.split_once('.').unwrap();
        if action.is_some() { self.calls.lock().unwrap().insert(field.to_owned(), 0); }
        self.pending.push((struct_name.to_owned(), (field.to_owned(), text, action)));
    }
    pub fn fields(&self, name: &str) -> Result<Box<dyn Fn(&str) -> Value>> {
        Ok(match &self.things[name] {
            Thing::Runtime(r) => { let i = r.info()?; Box::new(move |f| i.get(f).unwrap()) }
            Thing::Vocab(v) => { let i = v.info()?; Box::new(move |f| i.get(f).unwrap()) }
            Thing::Model(m) => { let i = m.info()?; Box::new(move |f| i.get(f).unwrap()) }
            Thing::Session(s) => { let i = s.stats()?; Box::new(move |f| i.get(f).unwrap()) }
            Thing::Plan(p) => { let i = p.clone(); Box::new(move |f| i.get(f).unwrap()) }
            _ => panic!("no fields"),
        })
    }
}

/// The pending options of a struct.
macro_rules! options {
    ($runner:expr, $type:ident, $name:expr $(, $callback:ident = $wrap:expr)?) => {{
        #[allow(unused_mut)]
        let mut options = $type::default();
        for (field, text, action) in $runner.take($name) {
            match action {
                $(Some(action) => { let act = $runner.act(action, &field); options.$callback = Some($wrap(act)); })?
                _ => assert!(options.set(&field, &text), "{}", field),
            }
        }
        options
    }};
}
/// What is named, if it is of this kind.
macro_rules! get { ($r:expr, $kind:ident, $name:expr) => { match $r.things.get_mut($name) { Some(Thing::$kind(x)) => x, _ => panic!("{}", $name) } } }
pub(crate) use {get, options};
