// Nomic's BERT (nomic-embed-text): BERT with RoPE in place of learned positions, an FFN with a gate, and products without biases.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/encoder/inputs.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_nomic_bert(Reading& in) {
  Description& d = in.d;
  d.layer_norms = d.norms_after = true;
  attention::Parts attention;
  attention.bidirectional = true;
  ORRERY_TRY(feed_forward::read(in, {}));
  ORRERY_TRY(attention::read(in, attention));
  for (LayerShape& layer : d.layers) layer.ffn_norm = "layer_output_norm";
  return encoder_inputs::read(in, false);
}

}  // namespace orrery::model
