//! What Rust's users expect beyond the conformance script. $ORRERY_MODEL names the demo model.
use orrery::*;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::Duration;

const TEXT: &str = "Nobody in the mill noticed the orange owl. Bruno lives in Salem. Orla is a printer from Tunis. ";

fn model() -> Model {
    let options = RuntimeOptions {
        n_threads: 1,
        backend: Some("cpu".into()),
        device_budget_bytes: 256 << 20,
        reservoir_bytes: 1 << 20,
        ..Default::default()
    };
    Runtime::new(options).unwrap().open(&std::env::var("ORRERY_MODEL").unwrap(), Default::default()).unwrap()
}
fn ask(session: &Session, repeat: usize, options: GenerateOptions) -> Generation {
    session.rewind_messages(0).unwrap();
    session.add_message("user", &(TEXT.repeat(repeat) + "\n\nWhere does Bruno live?")).unwrap();
    session.generate(options).unwrap()
}
fn session(model: &Model) -> Session {
    model.session(SessionOptions { n_context: 8192, ..Default::default() }).unwrap()
}

#[test]
fn types_cross_threads_as_documented() {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<Runtime>();
    shared::<Model>();
    shared::<Vocab>();
    shared::<Canceller>();
    shared::<Error>();
    moved::<Session>();
    moved::<Generation>();
}

#[test]
fn answers_have_their_form() {
    let (session, schema) = (session(&model()), "{\"const\": [1, \"a text of many words\"]}");
    let form = |max_tokens| GenerateOptions {
        grammar: Some(schema.into()),
        grammar_kind: grammar::JSON_SCHEMA,
        grammar_whitespace: whitespace::COMPACT,
        max_tokens,
        ..Default::default()
    };
    let (mut text, mut whole) = (String::new(), Vec::new());
    for max_tokens in [0, 2] {
        for event in ask(&session, 1, form(max_tokens)) {
            match event.unwrap() {
                Event::Text(piece) if max_tokens == 0 => text += &piece,
                Event::Done(done) => whole.push(done.complete),
                _ => (),
            }
        }
    }
    assert_eq!(text, "[1,\"a text of many words\"]");
    assert_eq!(whole, [true, false]);
}

const CALLING: &str = "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}\
    {{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}\
    {{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}";

#[test]
fn functions_are_tools() {
    let session = session(&model());
    let mut given = Vec::new();
    let look = r#"{"type": "object", "properties": {"at": {"enum": ["here"]}}, "required": ["at"]}"#;
    let options = |name: &'static str| {
        move || GenerateOptions { tools: tools::REQUIRED, tool_name: Some(name.into()), one_call: 1, max_tokens: 80, ..Default::default() }
    };
    let mut functions = Functions::new();
    functions.template.template_source = Some(CALLING.into());
    functions.most_turns = 2;
    functions.add("look", "Looks at \"it\".", look, |arguments| {
        given.push(arguments.to_owned());
        Ok("an \"owl\"\n".into())
    });
    functions.add("fails", "", "", |arguments| Err(format!("too far: {}", arguments).into()));
    let mut run = |name: &'static str, most_turns| {
        session.rewind_messages(0).unwrap();
        session.add_message("user", "hello").unwrap();
        functions.most_turns = most_turns;
        functions.run(&session, options(name))
    };
    run("look", 2).unwrap();
    assert_eq!(session.n_messages(), 4);
    assert!(session.message(2).unwrap().contains(r#""content": "an \"owl\"\n""#), "{}", session.message(2).unwrap());
    // A function's error is told to the model; without parameters it gets none.
    run("fails", 2).unwrap();
    assert!(session.message(2).unwrap().contains("too far: {}"), "{}", session.message(2).unwrap());
    // One turn calls nothing, and none is refused.
    run("look", 1).unwrap();
    assert_eq!(run("look", 0).unwrap_err().status, Status::INVALID_ARGUMENT);
    drop(functions);
    assert_eq!(given, [r#"{"at": "here"}"#]);
}

#[test]
fn ask_returns_the_whole_answer() {
    let session = session(&model());
    let question = TEXT.to_owned() + "\n\nWhere does Bruno live?";
    assert_eq!(session.ask(&question, Default::default()).unwrap().trim(), "Bruno lives in Salem.");
    assert_eq!(session.n_messages(), 2);
}

#[test]
fn paths_may_be_paths() {
    let path = std::path::PathBuf::from(std::env::var_os("ORRERY_MODEL").unwrap());
    Vocab::open(&path).unwrap();
    assert!(inspect(path.as_path()).unwrap().contains("llama"));
    assert_eq!(Vocab::open("a\0b").err().unwrap().status, Status::INVALID_ARGUMENT);
}

#[test]
fn adapters_and_a_draft_are_options_of_a_session() {
    let model = model();
    let path = std::path::PathBuf::from(std::env::var_os("ORRERY_MODEL").unwrap()).with_file_name("adapter.gguf");
    let adapter = Arc::new(model.adapter(&path).unwrap());
    let adapted = |adapters| model.session(SessionOptions { n_context: 512, adapters, ..Default::default() }).unwrap();
    let (given, later) = (adapted(vec![(adapter.clone(), 0.5)]), adapted(Vec::new()));
    given.evaluate(&[70, 71, 72]).unwrap();
    later.evaluate(&[70, 71, 72]).unwrap();
    assert_ne!(given.logits().unwrap(), later.logits().unwrap());
    later.set_adapters(&[(&adapter, 0.5)]).unwrap();
    drop(adapter); // the sessions keep it
    later.evaluate(&[70, 71, 72]).unwrap();
    assert_eq!(given.logits().unwrap(), later.logits().unwrap());
    let refused = model.session(SessionOptions { draft_source: Some("m.gguf".into()), ..Default::default() }).err().unwrap();
    assert_eq!(refused.option, "draft_source");
}

#[test]
fn leaving_a_loop_early_frees_the_session() {
    let session = session(&model());
    for event in ask(&session, 1, Default::default()) {
        event.unwrap();
        break;
    }
    session.add_message("user", "not busy").unwrap();
    let generation = session.generate(Default::default()).unwrap();
    assert_eq!(session.add_message("user", "busy").unwrap_err().status, Status::BUSY);
    drop(generation);
    session.add_message("user", "not busy").unwrap();
}

#[test]
fn cancelling_from_a_thread_during_prefill_and_after_the_end() {
    let session = session(&model());
    let generation = ask(&session, 100, Default::default());
    let (canceller, later) = (generation.canceller(), generation.canceller());
    let thread = spawn(move || {
        sleep(Duration::from_millis(30));
        canceller.cancel()
    });
    match generation.last().unwrap().unwrap() {
        Event::Done(done) => assert_eq!(done.finish_reason, finish_reason::CANCELLED),
        other => panic!("{:?}", other),
    }
    thread.join().unwrap();
    later.cancel();
    session.add_message("user", "not busy").unwrap();
}

#[test]
fn a_panic_in_a_hook_goes_on_in_the_call() {
    let session = session(&model());
    let hook: LogitsFn = Box::new(|_, _| panic!("mine"));
    let mut generation = ask(&session, 1, GenerateOptions { logits_hook: Some(hook), ..Default::default() });
    let payload = catch_unwind(AssertUnwindSafe(|| generation.by_ref().count())).unwrap_err();
    assert_eq!(*payload.downcast_ref::<&str>().unwrap(), "mine");
    assert!(matches!(generation.next_event(), Ok(Event::Done(_))));
    drop(generation);
    session.add_message("user", "not busy").unwrap();
}

#[test]
fn errors_tell_everything_and_strings_have_no_nul() {
    let model = model();
    let session = session(&model);
    let options = TemplateOptions { template_source: Some("\n {% endfor %}".into()), ..Default::default() };
    let error = session.set_template(options).unwrap_err();
    assert_eq!((error.status, error.line), (Status::UNSUPPORTED_TEMPLATE, 2));
    assert!(error.to_string().contains("ORRERY_UNSUPPORTED_TEMPLATE"));
    assert_eq!(session.add_message("user", "a\0b").unwrap_err().status, Status::INVALID_ARGUMENT);
    let refused = Vocab::open("/nowhere").err().unwrap();
    assert_eq!((refused.status, refused.native_code, refused.option.as_str()), (Status::IO, 2, ""));
    let refused = model.session(SessionOptions { speculate_tokens: 9, ..Default::default() }).err().unwrap();
    assert_eq!(refused.option, "speculate_tokens");
}

#[test]
fn a_generation_outlives_everything_else() {
    let generation = ask(&session(&model()), 1, Default::default());
    let text: String = generation.filter_map(|e| if let Ok(Event::Text(t)) = e { Some(t) } else { None }).collect();
    assert!(text.contains("Salem"), "{}", text);
}
