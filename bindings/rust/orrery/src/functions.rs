//! Functions that a model calls: the loop from an answer's calls to the answer that calls nothing.

use crate::{finish_reason, tools, Error, Event, GenerateOptions, Result, Session, Status, TemplateOptions};

/// What a function gives: its result's text, or an error, whose text becomes the result.
pub type FunctionResult = std::result::Result<String, Box<dyn std::error::Error>>;

struct Function<'a> {
    name: String,
    described: String,
    run: Box<dyn FnMut(&str) -> FunctionResult + 'a>,
}

/// Functions that the model may call.
///
/// ```no_run
/// # fn main() -> orrery::Result<()> {
/// # let chat = orrery::Runtime::new(Default::default())?.open("model.gguf", Default::default())?.session(Default::default())?;
/// let city = r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"#;
/// let mut functions = orrery::Functions::new();
/// functions.add("weather", "Tells the weather.", city, |arguments| Ok(r#"{"sky": "clear"}"#.into()));
/// chat.add_message("user", "Is it raining in Rome?")?;
/// println!("{}", functions.run(&chat, Default::default)?);
/// # Ok(())
/// # }
/// ```
pub struct Functions<'a> {
    /// The session's template while they run, and afterwards; `tools_json` is the functions'.
    pub template: TemplateOptions,
    /// Answers, at most; 8.
    pub most_turns: usize,
    functions: Vec<Function<'a>>,
}

impl Default for Functions<'_> {
    fn default() -> Self {
        Functions { template: TemplateOptions::default(), most_turns: 8, functions: Vec::new() }
    }
}

impl<'a> Functions<'a> {
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds a function. `parameters`: a JSON schema of its arguments; "": no parameters. `run` gets arguments as JSON, which fits the schema.
    pub fn add(&mut self, name: &str, description: &str, parameters: &str, run: impl FnMut(&str) -> FunctionResult + 'a) {
        let parameters = if parameters.is_empty() { r#"{"type": "object", "properties": {}}"# } else { parameters };
        let about = format!(r#"{{"name": {}, "description": {}, "parameters": {}}}"#, quoted(name), quoted(description), parameters);
        let described = format!(r#"{{"type": "function", "function": {}}}"#, about);
        self.functions.push(Function { name: name.to_owned(), described, run: Box::new(run) });
    }
    /// Answers the conversation. Calls are run in turn, and their results are messages, until an answer calls nothing: returns that answer's
    /// text. `options` makes each answer's options. `tools` and `tool_name` are the first answer's, by default `AUTO`; later ones are `AUTO`,
    /// in the last turn `NONE`. A function's panic goes on.
    pub fn run(&mut self, session: &Session, mut options: impl FnMut() -> GenerateOptions) -> Result<String> {
        if self.most_turns == 0 {
            return Err(Error::new(Status::INVALID_ARGUMENT, "most_turns is 0: at least one answer is needed"));
        }
        session.set_template(self.with_tools())?;
        for turn in 1.. {
            let mut options = options();
            if turn > 1 || options.tools == tools::IGNORED {
                options.tools = tools::AUTO;
            }
            if turn == self.most_turns {
                options.tools = tools::NONE;
            }
            if turn > 1 || turn == self.most_turns {
                options.tool_name = None;
            }
            let (text, calls) = answer(session, options)?;
            if calls.is_empty() {
                return Ok(text);
            }
            for call in calls {
                session.add_message_json(&self.result(&call))?;
            }
        }
        unreachable!("the last turn calls nothing")
    }
    fn with_tools(&self) -> TemplateOptions {
        let described: Vec<&str> = self.functions.iter().map(|f| f.described.as_str()).collect();
        TemplateOptions {
            add_generation_prompt: self.template.add_generation_prompt,
            template_source: self.template.template_source.clone(),
            template_name: self.template.template_name.clone(),
            tools_json: Some(format!("[{}]", described.join(", "))),
            variables_json: self.template.variables_json.clone(),
        }
    }
    /// Runs a call; its result as a message.
    fn result(&mut self, call: &Call) -> String {
        let function = self.functions.iter_mut().find(|f| f.name == call.name);
        let function = function.expect("the library lets a model call the tools it was given");
        let content = (function.run)(&call.arguments).unwrap_or_else(|e| e.to_string());
        let (id, name) = (quoted(&call.id), quoted(&call.name));
        format!(r#"{{"role": "tool", "tool_call_id": {}, "name": {}, "content": {}}}"#, id, name, quoted(&content))
    }
}

struct Call {
    name: String,
    id: String,
    arguments: String,
}

/// One answer's text, and the calls that wait for results: none where it was cancelled.
fn answer(session: &Session, options: GenerateOptions) -> Result<(String, Vec<Call>)> {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for event in session.generate(options)? {
        match event? {
            Event::Text(piece) => text += &piece,
            Event::CallEnd { name, id, text: arguments, .. } => calls.push(Call { name, id, arguments }),
            Event::Done(done) if done.finish_reason == finish_reason::CANCELLED => calls.clear(),
            _ => (),
        }
    }
    Ok((text, calls))
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out += &format!("\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
